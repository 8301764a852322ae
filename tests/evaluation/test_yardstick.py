"""The yardstick sorts pairs into their sets and weights sets, pairs and pixels as it says."""

import json
import sys
from pathlib import Path

import fake_trees
import numpy as np
import pytest

from benchmarks import yardstick
from dicl_flow.data import read_sample

COUNTS = dict(zip(yardstick.SETS, (20, 10, 4, 2, 1, 1, 1, 2, 1), strict=True))
"""Pairs of each set, in the folder of real pairs."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All sets, tiny; the manifest has one pair of the first set and two of the second."""
    root = tmp_path_factory.mktemp("sets")
    for data, place in yardstick.SETS.values():
        if not data.startswith("pairs"):
            fake_trees.MAKERS[data.partition(":")[0]](root / place)
    pairs = root / "validation"
    fake_trees.make_own_pairs(pairs, num_pairs=3)
    names = sorted(path.name.removesuffix("_img1.png") for path in pairs.glob("*_img1.png"))
    lines = ["image1,image2,flow"]
    for name, prefix in zip(names, ("kitti15-stereo-", "stereo2006-", "stereo2006-"), strict=True):
        frames = [f"{prefix}{name}_img{number}.png" for number in (1, 2)]
        for number, frame in enumerate(frames, start=1):
            (pairs / f"{name}_img{number}.png").rename(pairs / frame)
        lines.append(f"{frames[0]},{frames[1]},{name}_flow.flo")
    (pairs / "pairs.csv").write_text("\n".join(lines) + "\n")
    return root


def command(monkeypatch, capsys, *arguments):
    """Run the script; return its exit code, output and errors."""
    monkeypatch.setattr(sys, "argv", ["yardstick.py", *map(str, arguments)])
    code = 0
    try:
        yardstick.main()
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_sets_count_equally_and_pairs_count_equally_in_a_set():
    """One pair of 9 px against three of 1, 2 and 6 px, however many pixels they have."""
    few = {"a": {"epe": [90.0, 10]}}
    many = {"b": {"epe": [1000.0, 1000]}, "c": {"epe": [2.0, 1]}, "d": {"epe": [6.0, 1]}}
    found = yardstick.summarize({"one": few, "other": many})
    assert (found["one"]["mean"], found["one"]["median"]) == (9, 9)
    assert (found["other"]["mean"], found["other"]["median"]) == (3, 2)
    assert found["other"]["epe"] == pytest.approx(1008 / 1002)  # pixels count equally
    overall = found["mean of the sets"]
    assert (overall["mean"], overall["median"], overall["pairs"]) == (6, 5.5, 4)
    assert "ause" not in overall


def test_large_errors_of_confident_pixels(folder):
    """A quarter of the pixels is wrong by 20 px; half of these are confident."""
    pair = yardstick.find_pairs(folder, "Middlebury")[0]
    sample = read_sample(pair)
    flow, confidence = sample.flow.copy(), np.full(sample.flow.shape[:2], 0.95, np.float32)
    height, width = confidence.shape
    flow[: height // 2, : width // 2, 0] += 20
    confidence[: height // 4, : width // 2] = 0.9  # not above it
    parts = yardstick.score(pair, flow, confidence)
    total, count = parts["sure_over_10px"]
    assert count == sample.valid.sum() * 7 / 8
    assert total / count == pytest.approx(100 / 7)
    assert parts["epe"] == [pytest.approx(20 * sample.valid.sum() / 4), sample.valid.sum()]
    assert parts["ause"][0] > 0
    assert yardstick.score(pair, flow, None).keys() == set(yardstick.KEPT)


@pytest.mark.heavy
def test_the_command(folder, tiny_weights, tmp_path, monkeypatch, capsys):
    """Two methods are columns; a second run measures nothing again, and other methods stay."""
    output, page = tmp_path / "yardstick.json", tmp_path / "table.md"
    words = ["-w", tiny_weights, "--device", "cpu", "--precision", "fp32", "-o", output]
    code, out, err = command(
        monkeypatch, capsys, folder, *words, "-w", "dis", "--markdown", page, "--quality", "normal"
    )
    assert code == 0, err
    assert page.read_text() == out
    assert "| set | pairs | tiny: mean / median | dis: mean / median |" in out
    for name, count in (("KITTI-15 stereo", 1), ("stereo 2006", 2), ("Chairs", 4)):
        assert f"| {name} | {count} | " in out
    assert "Without a calibrated confidence: tiny, dis." in out
    document = json.loads(output.read_text())
    assert len(document["methods"]["tiny"]["weights"]) == 64
    assert str(tmp_path) not in output.read_text()
    monkeypatch.setattr(yardstick, "score", None)  # it would fail
    assert command(monkeypatch, capsys, folder, *words)[:2] == (0, out)


def test_other_weights_are_measured_again(tmp_path):
    method = yardstick.Method("one", {"weights": "new", "date": "2"}, None)
    stored = {"methods": {"one": {"weights": "old", "date": "1", "scores": {"set": {"a": {}}}}}}
    assert yardstick.earlier_scores(stored, method) == {}
    stored["methods"]["one"]["weights"] = "new"
    assert yardstick.earlier_scores(stored, method) == {"set": {"a": {}}}


def test_numbers_stored_under_numbered_names_are_not_measured_again(folder):
    stored = {"stereo 2006": {"00002_stereo2006-pair1_img1": {}, "00003_stereo2006-pair2_img1": {}}}
    document = {"methods": {"one": {"date": "1", "scores": {**stored, "Chairs": {"00001": {}}}}}}
    known = yardstick.earlier_scores(document, yardstick.Method("one", {"date": "2"}, None))
    assert known["Chairs"] == {"00001": {}}
    pairs = yardstick.find_pairs(folder, "stereo 2006")
    assert [*known["stereo 2006"]] == [pair.name for pair in pairs]


def test_what_cannot_be_measured_is_refused(folder, tmp_path, monkeypatch, capsys):
    other = tmp_path / "other.json"
    other.write_text("[]")
    monkeypatch.delenv("DICL_FLOW_DATASETS", raising=False)
    wrong = {
        (): "give the folder of the sets",
        (tmp_path,): "set 'KITTI-15 stereo': no folder",
        (folder, "--set", "Chars"): "unknown set 'Chars'; did you mean 'Chairs'",
        (folder, "--quality", "bes"): "unknown quality 'bes'",
        (folder, "-w", tmp_path / "no.safetensors"): "no weights file",
        (folder, "-o", other): "was not written by this script",
    }
    for arguments, said in wrong.items():
        code, out, err = command(monkeypatch, capsys, *arguments)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert said in err
        assert err.count("\n") == 1


def test_the_real_pairs(datasets):
    if not (datasets / yardstick.MANIFEST).exists():
        pytest.skip("no pairs for validation in the folder of real pairs")
    found = {name: len(yardstick.find_pairs(datasets, name)) for name in yardstick.SETS}
    assert found == COUNTS


def test_the_stored_numbers_are_of_the_packaged_weights():
    from dicl_flow.weights import PACKAGED_SHA256

    path = Path(yardstick.__file__).parent / "results" / "yardstick.json"
    methods = json.loads(path.read_text())["methods"]
    assert {m["weights"] for m in methods.values() if "weights" in m} == {
        PACKAGED_SHA256["rendered"]
    }
    for name in ("rendered", "dis"):
        assert {k: len(v) for k, v in methods[name]["scores"].items()} == COUNTS


def test_exported_files_are_compared_on_the_pairs_outside_the_manifest(folder):
    exported_half = pytest.importorskip("benchmarks.exported_half", exc_type=ImportError)
    pairs = dict(exported_half.find_all(folder))
    assert {name.partition(":")[0] for name in pairs} == {*list(yardstick.SETS)[2:]}
    name, pair = next(item for item in pairs.items() if item[0].startswith("Middlebury: "))
    truth = np.nan_to_num(read_sample(pair).flow)
    found = exported_half.measure(
        pair, lambda *_: truth + np.array([3, 4]), lambda *_: truth + np.array([3, 0])
    )
    assert found["size"] == [*truth.shape[1::-1]], name
    assert [found["fp32"], found["fp16"]] == pytest.approx([5, 3])
    assert [found["mean_distance"], found["largest_distance"]] == pytest.approx([4, 4])
