"""Rendered scenes get the colours and the noise of footage; their flow stays."""

from itertools import islice

import pytest
import torch
from small_training import RandomSource

from dicl_flow.adaptation.look import InLook, encode_look, give_look, measure_look, read_looks
from dicl_flow.training import Processes

HERE = Processes(torch.device("cpu"))
GREY = torch.tensor([[[0.8, 0.02, 0.01], [0.2, 0.0, 0.0], [0.0, 0.0, 0.0]]])
STEP = 3  # px to the right, from frame to frame


def footage(noise, seed=0):
    """Two frames of a smooth picture that moves, dark and red, with noise of their own."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 20, 30, generator=generator)
    wide = torch.nn.functional.interpolate(coarse, scale_factor=8, mode="bicubic").clamp(0, 1)
    wide = wide * torch.tensor([0.5, 0.2, 0.1])[:, None, None] + 0.1
    frames = torch.cat([wide[..., 8:-8], wide[..., 8 - STEP : -8 - STEP]])
    frames = frames + noise * torch.randn(2, 1, *frames.shape[2:], generator=generator)
    flow = torch.zeros(1, 2, *frames.shape[2:])
    flow[:, 0] = STEP
    return frames[:1], frames[1:], flow, torch.ones(1, *frames.shape[2:], dtype=torch.bool)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.06])
@pytest.mark.parametrize("part", [0.0, 0.5])
def test_noise_is_told_from_texture(noise, part):
    image1, image2, flow, kept = footage(noise)
    flow[:, 0] += part  # between pixels, the noise of two is blended
    look = measure_look(image1, image2, flow, kept)
    # the same in red, green and blue: grey only
    assert look.noise == pytest.approx([noise * 3**0.5, 0, 0], rel=0.1, abs=0.004)
    clean = measure_look(*footage(0.0)[:2], flow, kept)
    assert look.mean == pytest.approx(clean.mean, abs=0.01)
    assert look.spread == pytest.approx(clean.spread, rel=0.1, abs=0.005)


def test_too_few_known_pixels_tell_nothing_of_the_noise():
    image1, image2, flow, kept = footage(0.06)
    assert measure_look(image1, image2, flow, torch.zeros_like(kept)).noise == [0, 0, 0]


def test_frames_get_mean_spread_and_noise_of_the_look():
    image1, image2, flow, kept = footage(0.0)
    images = torch.stack([image1, image2])
    look = torch.tensor([[[0.9, 0.03, -0.02], [0.15, 0.01, 0.02], [0.05, 0.0, 0.0]]])
    found = give_look(images, look, torch.Generator().manual_seed(1))
    again = torch.tensor(measure_look(found[0], found[1], flow, kept))
    torch.testing.assert_close(again[0], look[0, 0], atol=0.01, rtol=0)
    torch.testing.assert_close(again[1], look[0, 1], atol=0.01, rtol=0.1)
    assert again[2, 0] == pytest.approx(0.05, rel=0.1)


def test_grey_footage_makes_grey_scenes():
    found = give_look(torch.rand(2, 1, 3, 16, 24), GREY, torch.Generator())
    apart = found - found.mean(2, keepdim=True)
    assert apart.std(dim=(0, 3, 4)).max() < 0.01


def test_blank_frames_stay_blank():
    found = give_look(torch.full((2, 1, 3, 16, 24), 0.5), GREY, torch.Generator())
    assert found.std(dim=(0, 3, 4)).max() < 1e-4


def test_a_share_of_the_pairs_gets_a_look_and_flow_stays(tmp_path):
    path = tmp_path / "look.json"
    path.write_bytes(encode_look(measure_look(*footage(0.05))))
    looks = read_looks([path, path])
    assert looks.shape == (2, 3, 3)
    plain = list(islice(RandomSource().batches(8, 0, HERE), 3))
    for share, expected in ((0.0, range(1)), (0.5, range(6, 19)), (1.0, range(24, 25))):
        looked = list(islice(InLook(RandomSource(), looks, share, 7).batches(8, 0, HERE), 3))
        changed = 0
        for one, other in zip(looked, plain, strict=True):
            assert torch.equal(one.flow, other.flow)
            assert torch.equal(one.valid, other.valid)
            changed += int((one.image1 != other.image1).flatten(1).any(1).sum())
        assert changed in expected


def test_a_run_that_goes_on_gives_the_same_batches():
    source = InLook(RandomSource(), GREY, 0.5, 7)
    whole = list(islice(source.batches(4, 0, HERE), 5))
    rest = list(islice(source.batches(4, 3, HERE), 2))
    for one, other in zip(whole[3:], rest, strict=True):
        assert torch.equal(one.image1, other.image1)
        assert torch.equal(one.image2, other.image2)
    assert not torch.equal(rest[0].image1, rest[1].image1)
