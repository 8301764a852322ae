"""The demo: its pairs are sound, and one command turns them into flow and pictures."""

import json

import numpy as np
import pytest

from dicl_flow.data import demo_pairs, read_frames, read_sample
from dicl_flow.evaluation import dis, endpoint_error
from dicl_flow.evaluation.metrics import score_by_warping, warping_difference
from dicl_flow.files import read_flow, read_image

pytestmark = pytest.mark.heavy

BUNNY, RENDERED = demo_pairs()
SIZE = (384, 512)


def test_demo_writes_flow_and_pictures(run, tiny_weights, tmp_path):
    folder = tmp_path / "new" / "folder"
    code, out, _ = run("demo", "-o", folder, "-w", tiny_weights, "--device", "cpu", "--json")
    assert code == 0
    summary = json.loads(out)
    names = [f"{name}.{suffix}" for name in ("bunny", "rendered") for suffix in ("flo", "png")]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert summary["written"] == [str(folder / name) for name in names]
    assert summary["bunny_seconds"] > 0
    assert "bunny_epe" not in summary

    assert read_flow(folder / "bunny.flo").shape == (*SIZE, 2)
    error = endpoint_error(read_flow(folder / "rendered.flo"), read_sample(RENDERED).flow)
    assert summary["rendered_epe"] == pytest.approx(error.mean())

    for pair, columns in ((BUNNY, 3), (RENDERED, 4)):
        sheet = read_image(folder / f"{pair.name}.png")
        assert sheet.shape[1] == 4 + columns * (512 + 4)
        top = sheet.shape[0] // 2 - 384 - 4  # two rows, each with text above and a gap below
        frame = sheet[top : top + 384, 4 : 4 + 512]
        np.testing.assert_array_equal(frame, read_image(pair.image1))


def typical_difference(flow):
    """Median over the pixels, which the occluded ones hardly move."""
    difference, inside = warping_difference(flow, *read_frames(RENDERED))
    return np.median(difference[inside])


def test_the_packaged_truth_brings_frame_2_onto_frame_1():
    flow = read_sample(RENDERED).flow
    right = typical_difference(flow)
    assert right < 2  # grey levels
    for wrong in (0 * flow, -flow, flow[..., ::-1]):
        assert typical_difference(wrong) > 10 * right
    for wrong in (flow + 0.5, flow - 0.5):
        assert typical_difference(wrong) > 1.5 * right


def test_the_film_moves_and_its_motion_can_be_found():
    frames = read_frames(BUNNY)
    assert frames[0].shape == (*SIZE, 3)
    score = score_by_warping(dis()(*frames), *frames).values
    assert score["warping_error"] < score["warping_error_still"] / 2


def test_packaged_files_are_small_and_credited():
    folder = BUNNY.image1.parent
    assert all(path.stat().st_size < 600_000 for path in folder.iterdir())
    credits = (folder / "CREDITS.md").read_text()
    assert "Blender Foundation" in credits
    assert "creativecommons.org/licenses/by/3.0" in credits
    pictures = {path.name for path in folder.iterdir()} - {"CREDITS.md"}
    assert all(f"`{name}`" in credits for name in pictures)


def test_wrong_input_is_one_sentence(run, tiny_weights, tmp_path):
    file = tmp_path / "file"
    file.touch()
    for arguments, message in [
        (("-o", file, "-w", tiny_weights), "is not a folder"),
        (("-o", file / "below", "-w", tiny_weights), "is not a folder"),
        (("-o", tmp_path / "x", "-w", "nonsense"), "unknown weights 'nonsense'"),
        (("-o", tmp_path / "x", "-w", "nowhere.safetensors"), "no weights file"),
        (("-o", tmp_path / "x", "-w", tiny_weights, "--device", "gpu"), "unknown device"),
        (("-o", tmp_path / "x", "-w", tiny_weights, "--precision", "fp8"), "unknown precision"),
    ]:
        code, out, err = run("demo", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err
    assert not (tmp_path / "x").exists()


def test_help_has_examples(run):
    assert "dicl-flow demo" in run("demo", "--help")[1]
