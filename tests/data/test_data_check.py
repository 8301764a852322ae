"""`dicl-flow data check` counts, draws and names what is broken."""

import json
import re

import fake_trees
import numpy as np
import pytest

from dicl_flow.cli import main
from dicl_flow.data import Survey, list_pairs, own_pairs
from dicl_flow.files import read_image
from dicl_flow.pictures.figures import contact_sheet


def run(capsys, *arguments):
    """(exit code, stdout, stderr) of `dicl-flow data check`."""
    with pytest.raises(SystemExit) as stop:
        main(["data", "check", *map(str, arguments)])
    return (stop.value.code, *capsys.readouterr())


def solid(height, width, color):
    return np.full((height, width, 3), color, np.uint8)


def test_contact_sheet_lays_out_pictures_of_any_size():
    red, green, blue = solid(100, 400, (255, 0, 0)), solid(30, 10, (0, 255, 0)), solid(9, 9, 255)
    sheet = contact_sheet([[red, green], [blue]], ["one", "two"], ["a", "b"], 200, 60)
    assert sheet.dtype == np.uint8
    assert (sheet == (255, 0, 0)).all(2).sum() == 50 * 200  # shrunk to the width
    assert (sheet == (0, 255, 0)).all(2).sum() == 60 * 20  # enlarged to the height
    columns = np.nonzero((sheet == (0, 255, 0)).all(2))[1]
    assert columns.min() > 200  # in its own column


def test_contact_sheet_writes_labels():
    picture = solid(10, 10, 0)
    sheets = [contact_sheet([[picture]], [label], ["column"]) for label in ("", "pair 7")]
    assert sheets[0].shape == sheets[1].shape
    assert (sheets[0] != sheets[1]).any()
    with pytest.raises(ValueError, match="zip"):
        contact_sheet([[picture]], [], ["column"])


def test_survey_quantiles_are_those_of_all_pixels(tmp_path):
    lengths = []
    for number, scale in enumerate((0.5, 7, 300)):
        flow = np.random.default_rng(number).normal(0, scale, (32, 40, 2)).astype(np.float32)
        flow[:number] = np.nan
        for suffix in ("img1", "img2"):
            fake_trees.write_image(tmp_path / f"{number}_{suffix}.png", solid(32, 40, 0))
        fake_trees.write_truth(tmp_path / f"{number}_flow.flo", flow)
        lengths.append(np.linalg.norm(flow[number:], axis=2).ravel())
    survey = Survey()
    for pair in own_pairs(tmp_path):
        survey.add(pair)
    lengths = np.concatenate(lengths)
    summary = survey.summary()
    assert summary["sizes"] == "40x32 (3)"
    assert summary["valid"] == pytest.approx((96 - 3) / 96)
    assert summary["motion_median"] == pytest.approx(np.quantile(lengths, 0.5), abs=0.03)
    assert summary["motion_p95"] == pytest.approx(np.quantile(lengths, 0.95), abs=1)
    assert summary["motion_max"] == pytest.approx(lengths.max())


def test_survey_of_unknown_flow_has_no_motion(tmp_path):
    fake_trees.make_own_pairs(tmp_path, num_pairs=1)
    fake_trees.write_truth(tmp_path / "pair0_flow.flo", np.full((64, 96, 2), np.nan))
    survey = Survey()
    survey.add(own_pairs(tmp_path)[0])
    assert survey.summary() == {"sizes": "96x64 (1)", "valid": 0.0}


@pytest.mark.parametrize("name", fake_trees.MAKERS)
def test_check_counts_and_draws_every_data_set(name, tmp_path, capsys):
    root = fake_trees.MAKERS[name](tmp_path / "root")
    code, out, err = run(capsys, name, root, "-o", tmp_path / "sheet.png", "--json")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["pairs"] == report["with_truth"] == len(list_pairs(name, root))
    assert report["broken"] == []
    assert report["written"] == [str(tmp_path / "sheet.png")]
    assert report["sizes"] == f"96x64 ({report['opened']})"
    assert 0 < report["motion_median"] <= report["motion_p95"] <= report["motion_max"] + 0.01 < 10
    assert read_image(tmp_path / "sheet.png").shape[0] > report["opened"] * 200


def test_check_names_broken_files(tmp_path, capsys):
    root = fake_trees.make_middlebury(tmp_path, scenes=("a", "b", "c"))
    (root / "other-data" / "a" / "frame11.png").write_bytes(b"nonsense")
    (root / "other-gt-flow" / "c" / "flow10.flo").write_bytes(b"PIEH")
    code, out, err = run(capsys, "middlebury", root, "-o", tmp_path / "sheet.png")
    assert code == 2
    assert [line.split() for line in out.splitlines()][4] == ["broken", "2"]
    assert [line for line in err.splitlines() if "broken: " in line and "a/frame11.png" in line]
    assert [line for line in err.splitlines() if "broken: " in line and "c/flow10.flo" in line]
    assert read_image(tmp_path / "sheet.png").shape[0] < 400  # one row is left


def test_check_opens_a_sample_or_all(tmp_path, capsys):
    root = fake_trees.make_middlebury(tmp_path, scenes="abcdefgh", size=(8, 8))
    (root / "other-data" / "b" / "frame10.png").write_bytes(b"nonsense")
    code, out, _ = run(capsys, "middlebury", root, "--samples", 4, "--json")
    assert (code, json.loads(out)["opened"]) == (0, 4)  # a, c, e, g
    sheet = tmp_path / "sheet.png"
    arguments = ("--samples", 4, "--all", "--json", "-o", sheet)
    code, out, _ = run(capsys, "middlebury", root, *arguments)
    assert (code, json.loads(out)["opened"]) == (2, 8)
    assert read_image(sheet).shape[0] < 5 * 270  # four rows, not eight


def test_check_when_nothing_can_be_read(tmp_path, capsys):
    root = fake_trees.make_middlebury(tmp_path, scenes=("a",))
    (root / "other-data" / "a" / "frame10.png").write_bytes(b"")
    code, out, err = run(capsys, "middlebury", root, "-o", tmp_path / "sheet.png", "--json")
    assert (code, json.loads(out)["written"]) == (2, [])
    assert "no pair can be read" in err
    assert not (tmp_path / "sheet.png").exists()


def test_check_counts_masks(tmp_path, capsys):
    """One pair of two has a mask, with a quarter of its pixels hidden."""
    root = fake_trees.make_own_pairs(tmp_path / "pairs")
    hidden = np.zeros((64, 96, 3), np.uint8)
    hidden[:16] = 255
    fake_trees.write_image(root / "pair0_occ.png", hidden)
    report = json.loads(run(capsys, "pairs", root, "--json")[1])
    assert (report["pairs"], report["with_occlusion"], report["occluded"]) == (2, 1, 0.25)
    sheet = tmp_path / "sheet.png"
    assert run(capsys, "pairs", root, "-o", sheet, "-q")[0] == 0
    assert (read_image(sheet) == (220, 40, 40)).all(2).mean() > 0.01
    fake_trees.write_image(root / "pair0_occ.png", hidden[:8])
    code, _, err = run(capsys, "pairs", root)
    assert code == 2
    assert "broken: " in err
    assert "pair0_occ.png is 96x8" in err


def test_check_without_truth(tmp_path, capsys):
    root = fake_trees.make_own_clip(tmp_path / "clip", truth=None)
    code, out, _ = run(capsys, "pairs", root, "--json", "-o", tmp_path / "sheet.png")
    report = json.loads(out)
    assert code == 0
    assert (report["pairs"], report["with_truth"]) == (2, 0)
    assert "valid" not in report
    assert (tmp_path / "sheet.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sintel", "{root}"), "unknown data set 'sintel'"),
        (("sintel-clean", "{root}"), "no folder .*training/clean; point at"),
        (("middlebury", "{root}", "-o", "{root}/sheet.gif"), "must end in .png or .jpg"),
        (("middlebury", "{root}", "-o", "/dev/null/sheet.png"), "is not a folder"),
    ],
)
def test_check_errors(arguments, message, tmp_path, capsys):
    fake_trees.make_middlebury(tmp_path)
    code, out, err = run(capsys, *(word.format(root=tmp_path) for word in arguments))
    assert (code, out) == (2, "")
    assert re.search(message, err)
