"""Warping and in-between frames are right for known motion."""

import json

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import dicl_flow
from dicl_flow.errors import InputError
from dicl_flow.estimation.warping import splat
from dicl_flow.files import read_image, write_flow
from dicl_flow.ops import sample_clamped

pytestmark = pytest.mark.heavy

SIZE = (64, 96)


def texture(seed):
    noise = np.random.default_rng(seed).integers(0, 256, (*SIZE, 3)).astype(np.float32)
    return cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 2), None, 0, 255, cv2.NORM_MINMAX)


def scene(time):
    """A background that moves by (4, -2) and a square before it that moves by (-12, 6)."""
    background = np.roll(texture(0), (round(-2 * time), round(4 * time)), (0, 1))
    top, left = 20 + round(6 * time), 50 - round(12 * time)
    background[top : top + 24, left : left + 24] = texture(1)[:24, :24]
    return background.astype(np.uint8)


def motion(top, left, sign):
    flow = np.tile(np.float32([4, -2]), (*SIZE, 1))
    flow[top : top + 24, left : left + 24] = (-12, 6)
    return sign * flow


FLOW, BACKWARD = motion(20, 50, 1), motion(26, 38, -1)


def distance(image, time):
    """Mean difference in grey levels, a margin left out: there the picture wraps around."""
    return np.abs(image.astype(float) - scene(time))[8:-8, 8:-8].mean()


@pytest.mark.parametrize("time", [0, 0.5, 1])
def test_the_frame_between_is_the_one_that_was_there(time):
    frame = dicl_flow.interpolate(scene(0), scene(1), FLOW, BACKWARD, time)
    assert frame.dtype == np.uint8
    assert distance(frame, time) < 1
    blended = (1 - time) * scene(0).astype(float) + time * scene(1)
    assert time in (0, 1) or distance(blended, time) > 10


def test_neither_the_wrong_sign_nor_the_wrong_time_will_do():
    frames = scene(0), scene(1)
    right = distance(dicl_flow.interpolate(*frames, FLOW, BACKWARD), 0.5)
    assert distance(dicl_flow.interpolate(*frames, -FLOW, -BACKWARD), 0.5) > 20 * right
    assert distance(dicl_flow.interpolate(*frames, FLOW, BACKWARD, 0.25), 0.5) > 20 * right


def test_what_only_one_frame_shows_comes_from_that_frame():
    """Frame 2 is painted over where frame 1 is hidden; the middle must not take it from there."""
    frames = scene(0), scene(1)
    frame = dicl_flow.interpolate(*frames, FLOW, BACKWARD)
    # between the squares of both moments: uncovered behind, not yet covered in front
    behind, front = frame[26:40, 70:73], frame[26:40, 40:43]
    np.testing.assert_allclose(behind, scene(0.5)[26:40, 70:73], atol=3)
    np.testing.assert_allclose(front, scene(0.5)[26:40, 40:43], atol=3)


def test_splat_conserves_what_stays_inside():
    torch.manual_seed(0)
    values, flow = torch.rand(2, 3, 8, 9), 4 * torch.rand(2, 2, 8, 9) - 2
    inner = torch.zeros(2, 1, 8, 9)
    inner[..., 3:-3, 3:-3] = 1
    thrown = splat(values * inner, flow)
    torch.testing.assert_close(thrown.sum((2, 3)), (values * inner).sum((2, 3)))
    moved = splat(values, torch.tensor([2.0, -1.0])[None, :, None, None].expand(2, 2, 8, 9))
    torch.testing.assert_close(moved[..., :-1, 2:], values[..., 1:, :-2])


def test_a_clamped_grid_samples_as_border_padding_does():
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(2, 3, 7, 9, generator=generator)
    grid = 1.5 * torch.randn(2, 20, 30, 2, generator=generator)
    grid[:, 0] = grid[:, 0].sign()  # corners
    expected = F.grid_sample(values, grid, padding_mode="border", align_corners=True)
    torch.testing.assert_close(sample_clamped(values, grid), expected, rtol=0, atol=1e-6)


def test_interpolation_refuses_what_it_cannot_do():
    frames = scene(0), scene(1)
    with pytest.raises(InputError, match="between 0"):
        dicl_flow.interpolate(*frames, FLOW, BACKWARD, 1.5)
    with pytest.raises(InputError, match="one size"):
        dicl_flow.interpolate(*frames, FLOW[1:], BACKWARD)
    with pytest.raises(InputError, match="unknown at some pixels"):
        dicl_flow.interpolate(*frames, np.full_like(FLOW, np.nan), BACKWARD)


# --- commands -----------------------------------------------------------------------------------


def test_interpolate_writes_frames_in_order(run, frames, tiny_weights, tmp_path):
    output = tmp_path / "slow.png"
    code, out, _ = run("interpolate", *frames, "-o", output, "-n", 3, "-w", tiny_weights, "--json")
    assert code == 0
    names = [tmp_path / f"slow_{number}.png" for number in (1, 2, 3)]
    assert json.loads(out)["written"] == [*map(str, names)]
    assert json.loads(out)["times"] == "0.25, 0.5, 0.75"
    assert all(read_image(name).shape == (37, 51, 3) for name in names)
    assert run("interpolate", *frames, "-o", output, "--time", 0, "-w", tiny_weights, "-q")[0] == 0
    np.testing.assert_allclose(read_image(output), read_image(frames[0]), atol=1)


def test_packaged_weights_find_a_frame_between(run, tmp_path):
    """A shift of a smooth picture by 8 px: the middle is the shift by 4."""
    noise = np.random.default_rng(0).integers(0, 256, (160, 200, 3)).astype(np.float32)
    picture = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 4), None, 0, 255, cv2.NORM_MINMAX)
    views = [picture[16:144, 20 - x : 180 - x].astype(np.uint8) for x in (0, 4, 8)]
    paths = [tmp_path / f"{name}.png" for name in "abm"]
    cv2.imwrite(str(paths[0]), views[0]), cv2.imwrite(str(paths[1]), views[2])
    assert run("interpolate", *paths[:2], "-o", paths[2], "--device", "cpu")[0] == 0
    middle = cv2.imread(str(paths[2])).astype(float)
    error = np.abs(middle - views[1])[16:-16, 16:-16].mean()
    blend = np.abs(views[0] / 2 + views[2] / 2 - views[1])[16:-16, 16:-16].mean()
    assert error < blend / 4


def test_warp_brings_frame_2_onto_frame_1(run, tmp_path):
    paths = {name: tmp_path / name for name in ("two.png", "flow.flo", "again.png", "inside.png")}
    cv2.imwrite(str(paths["two.png"]), scene(1)[..., ::-1])
    flow = FLOW.copy()
    flow[:5, :5] = np.nan
    write_flow(paths["flow.flo"], flow)
    arguments = [paths["two.png"], paths["flow.flo"], "-o", paths["again.png"]]
    code, out, _ = run("warp", *arguments, "--mask", paths["inside.png"], "--json")
    assert code == 0
    again, inside = read_image(paths["again.png"]), read_image(paths["inside.png"])[..., 0]
    expected = np.ones(SIZE, bool)
    expected[:5, :5] = expected[:2] = expected[:, -4:] = False
    np.testing.assert_array_equal(inside > 0, expected)
    assert (again[~expected] == 0).all()
    summary = json.loads(out)
    assert summary["inside"] == pytest.approx(expected.mean())
    assert summary["written"] == [str(paths["again.png"]), str(paths["inside.png"])]
    visible = np.zeros(SIZE, bool)
    visible[20:44, 50:74] = True  # the square is seen in both
    np.testing.assert_allclose(again[visible].astype(int), scene(0)[visible], atol=1)


def test_wrong_input_is_one_sentence(run, frames, tiny_weights, tmp_path):
    write_flow(tmp_path / "small.flo", np.zeros((3, 4, 2), np.float32))
    out = tmp_path / "out.png"
    for arguments, message in [
        (("warp", frames[1], tmp_path / "small.flo", "-o", out), "must have one size"),
        (("warp", frames[1], frames[0], "-o", out), "16-bit RGB PNG"),
        (("warp", frames[1], tmp_path / "no.flo", "-o", out), "no such file"),
        (("interpolate", *frames, "-o", out, "--time", 2), "--time"),
        (("interpolate", *frames, "-o", out, "--time", 0.5, "-n", 2), "not both"),
        (("interpolate", *frames, "-o", tmp_path / "x.xyz", "-w", tiny_weights), "extension"),
    ]:
        code, _, err = run(*arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
    assert not out.exists()
