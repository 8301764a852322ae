"""Evaluation scores known flows exactly, and tables, sheets and submissions show it."""

import io
import json
import zipfile
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from conftest import SMALL
from fake_trees import (
    SIZE,
    make_chairs,
    make_kitti12,
    make_kitti15,
    make_middlebury,
    make_own_clip,
    make_own_pairs,
    make_sintel,
    write_image,
)
from rich.console import Console

import dicl_flow
from dicl_flow.data import list_pairs, read_sample
from dicl_flow.errors import InputError
from dicl_flow.evaluation import (
    PUBLISHED,
    Evaluation,
    Grid,
    Result,
    dis,
    endpoint_error,
    pool,
    predict,
    print_grid,
    print_results,
    score_flow,
    score_predictions,
    submission_entries,
    write_submission,
)
from dicl_flow.evaluation.drawings import draw_prediction
from dicl_flow.evaluation.evaluate import read_predictions
from dicl_flow.files import encode_npy, read_flow, read_image
from dicl_flow.models import build
from dicl_flow.pictures.visualize import error_to_rgb
from dicl_flow.weights import Weights, encode_weights


@pytest.fixture
def sintel(tmp_path):
    return make_sintel(tmp_path / "Sintel")


@pytest.fixture
def kitti(tmp_path):
    return make_kitti15(tmp_path / "KITTI")


def brightness_method(image1, image2):
    """A flow that differs from pair to pair and pixel to pixel, at no cost."""
    return np.stack([image1[..., 0] / 7, image2[..., 1] / 9], -1).astype(np.float32)


def still_method(image1, image2):
    return np.zeros((*image1.shape[:2], 2), np.float32)


def evaluated(name, root, method=brightness_method, method_name="ours"):
    scores = score_predictions(predict(list_pairs(name, root), method))
    return Result(name, f"label of {name}", method_name, scores)


def files_under(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_kept_predictions_score_the_same(sintel, tmp_path):
    pairs = list_pairs("sintel-clean", sintel)
    scores = score_predictions(predict(pairs, brightness_method, tmp_path / "kept"))
    assert files_under(tmp_path / "kept") == {f"{pair.name}.flo" for pair in pairs}
    assert score_predictions(read_predictions(pairs, tmp_path / "kept")) == scores
    flow = read_flow(tmp_path / "kept" / "alley_1" / "frame_0001.flo")
    assert scores["alley_1/frame_0001"] == score_flow(flow, read_sample(pairs[0]))


def test_an_error_names_the_pair(sintel, tmp_path):
    pairs = list_pairs("sintel-clean", sintel)
    with pytest.raises(InputError, match=r"pair alley_1/frame_0001: .* shape \(5, 5, 2\)"):
        next(predict(pairs, lambda image1, image2: np.zeros((5, 5, 2))))
    with pytest.raises(InputError, match="pair alley_1/frame_0001: the estimate is unknown"):
        score_predictions([(pairs[0], np.full((*SIZE, 2), np.nan))])
    with pytest.raises(FileNotFoundError, match=r"frame_0001\.flo"):
        next(read_predictions(pairs, tmp_path))


def test_damaged_predictions_are_named(sintel, tmp_path):
    pairs = list_pairs("sintel-clean", sintel)[:1]
    kept = tmp_path / "kept"
    list(predict(pairs, brightness_method, kept))
    file = kept / f"{pairs[0].name}.confidence.npy"
    file.write_bytes(encode_npy(np.zeros(SIZE))[:-1])
    with pytest.raises(InputError, match=r"frame_0001\.confidence\.npy: truncated file"):
        list(read_predictions(pairs, kept))
    file.write_bytes(encode_npy(np.zeros((3, 4))))
    with pytest.raises(InputError, match=r"pair .*: the confidence has the shape \(3, 4\)"):
        score_predictions(read_predictions(pairs, kept))


def test_without_truth_the_warp_is_judged(tmp_path):
    make_own_clip(tmp_path / "with_truth")
    make_own_clip(tmp_path / "without", truth=None)
    truth = read_flow(tmp_path / "with_truth" / "frame_9.flo")
    perfect = evaluated("pairs", tmp_path / "without", lambda *frames: truth).total.values
    assert set(perfect) == {"warping_error", "warping_error_still"}
    assert perfect["warping_error"] == pytest.approx(0, abs=1e-9)
    still = evaluated("pairs", tmp_path / "without", still_method).total.values
    assert still["warping_error"] == pytest.approx(still["warping_error_still"])
    assert still["warping_error"] > 5


@pytest.mark.heavy
def test_eval_writes_all_outputs_and_scores_them_again(run, sintel, kitti, tiny_weights, tmp_path):
    clip = make_own_clip(tmp_path / "clip", truth=None)
    data = ["-d", f"sintel-clean={sintel}", "-d", f"kitti15:noc={kitti}", "-d", f"pairs={clip}"]
    first, again = tmp_path / "first.json", tmp_path / "again.json"
    markdown, pictures, kept = tmp_path / "t.md", tmp_path / "worst", tmp_path / "kept"
    outputs = ["-o", first, "--markdown", markdown, "--worst", 2, pictures, "--keep", kept]
    code, out, err = run("eval", *data, "-w", tiny_weights, "--baseline", "dis", *outputs)
    assert (code, err) == (0, "")
    assert "KITTI-15 (noc), 2" in out
    assert "grey levels, not EPE" in out

    computed = json.loads(first.read_text())["computed"]
    assert set(computed.values()) == {"whole"}  # multiples of what the tiny network takes
    for size, how in computed.items():
        width, height = size.split("x")
        assert f"frames of {width}x{height} are computed {how}\n" in out

    results = json.loads(first.read_text())["results"]
    found = {(result["data"], result["method"]) for result in results}
    names = ("sintel-clean", "kitti15:noc", "pairs")
    assert found == {(name, method) for name in names for method in ("tiny", "dis")}
    for result in results:
        root = {"sintel-clean": sintel, "kitti15:noc": kitti, "pairs": clip}[result["data"]]
        folder = kept / result["method"] / result["data"].replace(":", "-")
        scores = score_predictions(read_predictions(list_pairs(result["data"], root), folder))
        assert result["metrics"] == pool(scores.values()).values
        assert result["pairs"] == {name: score.values for name, score in scores.items()}

    assert "| Sintel clean, 4 | dis |" in markdown.read_text()
    drawn = files_under(pictures)
    assert len(drawn) == 2 * 3 * 2
    assert any(name.startswith("dis/kitti15-noc/01-00000") for name in drawn)
    assert run("eval", *data, "--predictions", kept, "-o", again, "--quiet") == (0, "", "")
    rescored = json.loads(again.read_text())["results"]
    assert sorted(rescored, key=str) == sorted(results, key=str)


def test_eval_at_full_size_is_not_scaled(run, kitti, tmp_path):
    torch.manual_seed(0)
    config = replace(SMALL, padding="resize", max_pixels=32 * 48)
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(encode_weights(Weights(config, build(config).state_dict())))
    arguments = ("eval", "-d", f"kitti15={kitti}", "-w", weights, "--device", "cpu")
    scaled = run(*arguments, "--keep", tmp_path / "scaled")[1]
    assert "frames of 96x64 are computed scaled down to 48x32, 0.50 of the size\n" in scaled
    whole = run(*arguments, "--keep", tmp_path / "whole", "--full-size")[1]
    assert "frames of 96x64 are computed whole, seen as 48x32, then as 96x64\n" in whole
    flows = [read_flow(next((tmp_path / n).rglob("*.flo"))) for n in ("scaled", "whole")]
    assert not np.allclose(*flows)


def test_eval_prints_what_it_would_save(run, kitti, tmp_path):
    saved, kept = tmp_path / "a.json", tmp_path / "kept"
    arguments = ("eval", "-d", f"kitti15={kitti}", "--baseline", "dis")
    outputs = ("-o", saved, "--keep", kept, "--json")
    code, out, err = run(*arguments, *outputs)
    assert (code, err) == (0, "")
    printed = json.loads(out)
    assert printed.pop("written") == [str(saved), str(kept)]
    assert printed == json.loads(saved.read_text())
    assert json.loads(run(*arguments, "--json", "--quiet")[1])["written"] == []


def test_masks_part_visible_and_hidden_pixels(run, tmp_path):
    folder = make_own_pairs(tmp_path / "pairs", num_pairs=1)
    hidden = np.zeros(SIZE, bool)
    hidden[:9] = hidden[:, 40:] = True
    write_image(folder / "pair0_occ.png", np.repeat(255 * hidden[..., None], 3, 2).astype("uint8"))
    arguments = ("eval", "-d", f"pairs={folder}", "--baseline", "dis")
    found = json.loads(run(*arguments, "--json")[1])["results"][0]["metrics"]
    frames = [read_image(folder / f"pair0_img{number}.png") for number in (1, 2)]
    error = endpoint_error(dis()(*frames), read_flow(folder / "pair0_flow.flo"))
    assert found["matched"] == pytest.approx(error[~hidden].mean())
    assert found["unmatched"] == pytest.approx(error[hidden].mean())
    assert "unmatched" in run(*arguments)[1]


def test_python_users_evaluate_functions_estimators_and_some_pairs(kitti, tiny_weights):
    estimator = dicl_flow.load(tiny_weights, device="cpu")
    some = list_pairs("kitti15", kitti)[:1]
    found = dicl_flow.evaluate({"kitti15": some}, {"still": still_method, "mine": estimator})
    assert [result.method for result in found.results] == ["still", "mine"]
    expected = evaluated("kitti15", kitti, still_method).scores[some[0].name].values
    assert found.results[0].total.values == expected
    assert found.results[1].total.values["ause"] > 0
    assert found.computed == {"96x64": "whole"}
    with pytest.raises(InputError, match="quality: for weights given by name"):
        dicl_flow.evaluate({"kitti15": some}, {"still": still_method}, quality="best")
    with pytest.raises(InputError, match="two methods have the name 'tiny'"):
        dicl_flow.evaluate({"kitti15": some}, [tiny_weights, str(tiny_weights)])


def test_eval_takes_a_backend(run, kitti, tiny_weights):
    arguments = ("eval", "-d", f"kitti15={kitti}", "-w", tiny_weights, "--device", "cpu", "-q")
    assert run(*arguments, "--backend", "plain") == (0, "", "")
    code, _, error = run(*arguments, "--backend", "plian")
    assert code == 2
    assert "did you mean 'plain'" in error


def test_published_rows_stand_beside_ours(sintel, kitti):
    results = [evaluated("sintel-final", sintel), evaluated("kitti15", kitti)]
    document = json.loads(Evaluation(results).to_json())
    rows = {(row["method"], row["training"]): row for row in document["published"]}
    assert rows["DICL", "C+T"]["metrics"] == {
        "kitti15": {"epe_images": 8.70, "fl_all": 23.6},
        "sintel-final": {"epe": 3.77},
    }
    assert rows["DICL", "C+T"]["in_paper"]
    assert not rows["RAFT", "C+T"]["in_paper"]
    assert rows["VCN", "+K/S"]["on_training_data"]
    assert rows["SelFlow", "+K/S"]["metrics"]["kitti15"]["fl_all"] is None

    lines = Evaluation(results).to_markdown().splitlines()
    ours = results[0].total.values["epe"], results[1].total.values
    assert any(
        line.startswith("| ours |  |")
        and f"{ours[1]['epe_images']:.2f} | {ours[1]['fl_all']:.1f} | {ours[0]:.2f}" in line
        for line in lines
    )
    assert "| DICL | C+T | 8.70 | 23.6 | 3.77 |" in lines
    assert "| SelFlow | +K/S | (1.18) |  | (1.77) |" in lines
    assert "| RAFT* | C+T | 5.04 | 17.4 | 2.71 |" in lines
    assert any("4 of the 1041 pairs: not comparable" in line for line in lines)


def test_sintel_counts_all_pixels_unless_asked(run, sintel, kitti, tmp_path):
    arguments = ["eval", "-d", f"sintel-clean={sintel}", "--baseline", "dis"]
    kept = tmp_path / "kept"
    _, everything, _ = run(*arguments, "--json", "--keep", kept)
    again = ["eval", "-d", f"sintel-clean={sintel}", "--predictions", kept, "--valid-only"]
    _, valid, _ = run(*again, "--json")
    (everything,), (valid,) = (json.loads(text)["results"] for text in (everything, valid))
    assert (everything["num_masked"], valid["num_masked"]) == (0, 4)
    assert everything["metrics"]["epe"] != valid["metrics"]["epe"]
    pairs = list_pairs("sintel-clean", sintel)
    masked = [replace(pair, valid_only=True) for pair in pairs]
    scores = score_predictions(read_predictions(masked, kept / "dis" / "sintel-clean"))
    assert valid["metrics"]["epe"] == pool(scores.values()).values["epe"]
    assert "leaves out invalid pixels of 4 pairs: not comparable" in " ".join(
        run(*again)[1].split()
    )
    code, _, error = run("eval", "-d", f"kitti15={kitti}", "--baseline", "dis", "--valid-only")
    assert (code, "--valid-only: no pair has a mask" in error) == (2, True)


def test_table_2_is_whole():
    rows = [row for row in PUBLISHED if row.source == "table 2 of the paper"]
    assert len(rows) == len({row[:2] for row in rows}) == 20
    numbers = [[value for value in row if isinstance(value, float)] for row in rows]
    assert sum(map(len, numbers)) == 127  # of 20 rows and 8 columns; the others are dashes
    # the sum of a column, so that a slip of the pen is found
    columns = zip(*(row[2:10] for row in rows), strict=True)
    sums = [sum(filter(None, column)) for column in columns]
    assert sums == pytest.approx([25.3, 93.08, 274.9, 112.7, 34.74, 54.06, 44.52, 59.4])


def test_chairs_stands_beside_its_published_rows(tmp_path):
    document = Evaluation([evaluated("chairs:val", make_chairs(tmp_path))]).document()
    rows = {row["method"]: row["metrics"]["chairs:val"]["epe"] for row in document["published"]}
    assert rows["DICL without DAP"] == 1.33
    assert set(document["published"][0]) >= {"source", "all"}
    assert len(rows) == 5  # methods without a number for Chairs are left out


def test_no_published_rows_without_their_data_set(kitti, tmp_path):
    root = make_middlebury(tmp_path / "Middlebury")
    results = [evaluated("middlebury", root), evaluated("kitti15:noc", kitti)]
    assert json.loads(Evaluation(results).to_json())["published"] == []
    assert "DICL" not in Evaluation(results).to_markdown()


def test_the_terminal_cuts_nothing(sintel, kitti):
    results = [
        evaluated(name, root, method_name="a method with a long name")
        for name, root in (("sintel-clean", sintel), ("sintel-final", sintel), ("kitti15", kitti))
    ]
    console = Console(file=io.StringIO(), width=80)
    print_results(results, console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text.replace("(…)", "")
    assert "FlowFormer++*" in text
    for result in results:
        assert f"{result.total.values['epe']:.2f}" in text


@pytest.mark.parametrize(("width", "lines"), [(120, 4), (80, 5), (40, 5)])
def test_no_column_is_lost_on_a_narrow_terminal(width, lines):
    cells = ["PWC-Net + DICL", "us", *["5.78 ± 0.04"] * 6]
    grid = Grid("Ablation", ["variant", "by", *["KITTI-15 EPE"] * 6], [cells])
    console = Console(file=io.StringIO(), width=width)
    print_grid(grid, console)
    text = console.file.getvalue()
    assert sorted(text.split()) == sorted(f"Ablation {' '.join([*grid.headings, *cells])}".split())
    assert len(text.strip().splitlines()) == lines


def test_the_worst_pairs_come_first_and_show_their_error(sintel):
    pairs = list_pairs("sintel-clean", sintel)
    result = evaluated("sintel-clean", sintel)
    epe = {name: score.values["epe"] for name, score in result.scores.items()}
    assert result.worst(3) == sorted(epe, key=epe.get)[:-4:-1]
    assert len(result.worst(100)) == len(pairs)
    truth = read_flow(pairs[0].truth)
    right, wrong = draw_prediction(pairs[0], truth), draw_prediction(pairs[0], truth + 3)
    assert right.shape == wrong.shape
    half = right.shape[1] // 2
    last = slice(-right.shape[0] // 4, None)  # the error map stands at the bottom left
    assert wrong[last, :half].mean() > right[last, :half].mean() + 50


def test_error_colors():
    error = np.array([[0.0, 2.0, 9.0, np.nan]])
    valid = np.array([[True, True, True, False]])
    colors = error_to_rgb(error, valid, maximum=2).astype(int)[0]
    assert colors[0].max() < 10
    assert colors[1].min() > 150
    assert (colors[1] == colors[2]).all()
    assert (colors[3] == 90).all()


@pytest.mark.parametrize(
    ("benchmark", "make", "names"),
    [
        ("kitti15", make_kitti15, {"flow/000000_10.png", "flow/000001_10.png"}),
        ("kitti12", make_kitti12, {"000000_10.png", "000001_10.png"}),
    ],
)
def test_kitti_submission_reads_back(run, tiny_weights, tmp_path, benchmark, make, names):
    root, output = make(tmp_path / "data"), tmp_path / "out.zip"
    code, out, err = run("submit", benchmark, root, "-o", output, "-w", tiny_weights)
    most = {"kitti15": 200, "kitti12": 195}[benchmark]
    missing = f"{most - 2} of the {most} test pairs are missing in {root}"
    assert (code, err) == (0, f"warning: {missing}; the server will refuse this\n")
    assert run("submit", benchmark, root, "-o", output, "-w", tiny_weights, "-q")[2] == ""
    assert "files" in out
    estimator = dicl_flow.load(tiny_weights)
    entries = submission_entries(benchmark, root)
    with zipfile.ZipFile(output) as archive:
        assert set(archive.namelist()) == names == set(entries)
        for name, pair in entries.items():
            raw = cv2.imdecode(np.frombuffer(archive.read(name), np.uint8), cv2.IMREAD_UNCHANGED)
            assert raw.dtype == np.uint16
            assert raw.shape == (*SIZE, 3)
            valid, v, u = np.moveaxis(raw[..., :3].astype(float), 2, 0)  # OpenCV reads BGR
            flow = estimator(pair.image1, pair.image2).flow
            assert (valid == 1).all()
            assert np.abs((u - 2**15) / 64 - flow[..., 0]).max() <= 1 / 128
            assert np.abs((v - 2**15) / 64 - flow[..., 1]).max() <= 1 / 128


@pytest.mark.heavy
def test_sintel_submission_reads_back(run, sintel, tiny_weights, tmp_path):
    output = tmp_path / "out.zip"
    arguments = ("submit", "sintel", sintel, "-o", output, "-w", tiny_weights, "--json")
    summary = json.loads(run(*arguments)[1])
    assert (summary["files"], summary["written"]) == (8, [str(output)])
    estimator = dicl_flow.load(tiny_weights)
    with zipfile.ZipFile(output) as archive:
        assert set(archive.namelist()) == {
            f"{render_pass}/{scene}/frame_{number:04d}.flo"
            for render_pass in ("clean", "final")
            for scene in ("alley_1", "cave_4")
            for number in (1, 2)
        }
        data = archive.read("final/cave_4/frame_0002.flo")
    frames = sintel / "test" / "final" / "cave_4"
    flow = estimator(frames / "frame_0002.png", frames / "frame_0003.png").flow
    assert data[:4] == b"PIEH"
    assert np.frombuffer(data[4:12], "<i4").tolist() == [SIZE[1], SIZE[0]]
    assert (np.frombuffer(data[12:], "<f4").reshape(flow.shape) == flow).all()


def test_a_submission_holds_even_absurd_estimates(kitti, tmp_path):
    entries = submission_entries("kitti15", kitti)
    wild = np.full((*SIZE, 2), 4000, np.float32) * [1, -1]
    output = tmp_path / "out.zip"
    write_submission(output, entries, predict(entries.values(), lambda *frames: wild))
    zipfile.ZipFile(output).extractall(tmp_path)
    assert (read_flow(tmp_path / "flow" / "000001_10.png") == [511.984375, -512]).all()


def test_a_failed_submission_leaves_nothing(kitti, tmp_path):
    def fail_at_the_second(image1, image2):
        if (tmp_path / "first").exists():
            raise InputError("no more")
        (tmp_path / "first").touch()
        return still_method(image1, image2)

    entries, before = submission_entries("kitti15", kitti), files_under(tmp_path)
    with pytest.raises(InputError, match="pair 000001_10: no more"):
        write_submission(
            tmp_path / "out.zip", entries, predict(entries.values(), fail_at_the_second)
        )
    assert files_under(tmp_path) == before | {"first"}


def test_dis_follows_the_motion(sintel):
    values = evaluated("sintel-clean", sintel, dis()).total.values
    assert values["epe"] < 0.5 * evaluated("sintel-clean", sintel, still_method).total.values["epe"]


def test_dis_says_what_it_cannot_do(monkeypatch):
    tiny = np.zeros((4, 4, 3), np.uint8)
    with pytest.raises(InputError, match="4x4 px"):
        dis()(tiny, tiny)
    monkeypatch.delattr(cv2, "DISOpticalFlow_create")
    with pytest.raises(InputError, match="without DISOpticalFlow"):
        dis()


BAD_EVALUATIONS = {
    "must be NAME=PATH": ["-d", "kitti15", "--baseline", "dis"],
    "did you mean 'kitti15'": ["-d", "kiti15={kitti}", "--baseline", "dis"],
    "{tmp}/nowhere": ["-d", "kitti15={tmp}/nowhere", "--baseline", "dis"],
    "kitti15 twice": ["-d", "kitti15={kitti}", "-d", "kitti15={kitti}", "--baseline", "dis"],
    "unknown baseline 'dsi'; did you mean 'dis'": ["-d", "kitti15={kitti}", "--baseline", "dsi"],
    "contains no weights": ["-d", "kitti15={kitti}"],
    "no weights file": ["-d", "kitti15={kitti}", "--weights", "{tmp}/no.safetensors"],
    "same name": [
        *("-d", "kitti15={kitti}", "--baseline", "dis"),
        *("-o", "{tmp}/a", "--markdown", "{tmp}/a"),
    ],
    "--worst must be positive": [
        "-d",
        "kitti15={kitti}",
        "--baseline",
        "dis",
        "--worst",
        "0",
        "{tmp}/w",
    ],
    "{file} is not a folder": ["-d", "kitti15={kitti}", "--baseline", "dis", "--keep", "{file}/k"],
    "leave out --weights": [
        *("-d", "kitti15={kitti}", "--baseline", "dis", "--predictions", "{kitti}")
    ],
    "no folder {tmp}/gone": ["-d", "kitti15={kitti}", "--predictions", "{tmp}/gone"],
    "no such file: {kitti}/testing/kitti15/000000_10.flo": [
        *("-d", "kitti15={kitti}", "--predictions", "{kitti}")
    ],
    "holds no predictions": ["-d", "kitti15={kitti}", "--predictions", "{kitti}/training/image_2"],
}
BAD_SUBMISSIONS = {
    "unknown benchmark 'kiti'": ["kiti", "{kitti}", "-o", "{tmp}/a.zip"],
    "must end in .zip": ["kitti15", "{kitti}", "-o", "{tmp}/a.tar"],
    "no folder {kitti}/test/clean": ["sintel", "{kitti}", "-o", "{tmp}/a.zip"],
    "{file} is not a folder": ["kitti15", "{kitti}", "-o", "{file}/a.zip"],
    "contains no weights": ["kitti15", "{kitti}", "-o", "{tmp}/a.zip"],
}
BAD_USES = [
    (command, message, arguments)
    for command, uses in (("eval", BAD_EVALUATIONS), ("submit", BAD_SUBMISSIONS))
    for message, arguments in uses.items()
]


@pytest.mark.parametrize(("command", "message", "arguments"), BAD_USES)
def test_bad_input_is_one_sentence(run, kitti, tmp_path, monkeypatch, command, message, arguments):
    monkeypatch.setattr("dicl_flow.weights._PACKAGED", tmp_path)  # no packaged weights
    before = set(tmp_path.rglob("*"))
    places = {"tmp": tmp_path, "kitti": kitti, "file": kitti / "training/image_2/000000_10.png"}
    code, out, err = run(command, *(argument.format(**places) for argument in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message.format(**places) in err
    assert set(tmp_path.rglob("*")) == before
