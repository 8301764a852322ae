"""Rendered scenes get the contrast, the colours and the noise of footage; their flow stays."""

from itertools import islice

import pytest
import torch
from small_training import RandomSource

from dicl_flow.adaptation.look import (
    BANDS,
    LOOK,
    InLook,
    encode_look,
    give_look,
    measure_look,
    read_looks,
)
from dicl_flow.training import Processes

HERE = Processes(torch.device("cpu"))
NOISE, STAYS, MEAN, SPREAD = range(BANDS, BANDS + 4)
SIZE = (192, 256)
STEP = 5  # px to the right, from frame to frame


def a_look(grey_contrast=0.1, noise=0.0):
    """Grey, of one contrast everywhere."""
    look = torch.zeros(1, *LOOK)
    look[:, 0, :BANDS] = grey_contrast
    look[:, 0, NOISE], look[:, 0, MEAN], look[:, 0, SPREAD] = noise, 0.8, 0.1
    return look


def texture(generator, height, width):
    """(1, 3, H, W) with detail of all sizes."""
    sizes = [(height >> level, width >> level) for level in range(1, 6)]
    parts = [torch.randn(1, 3, *size, generator=generator) for size in sizes]
    large = [torch.nn.functional.interpolate(p, (height, width), mode="bilinear") for p in parts]
    return torch.stack(large).sum(0)


def footage(noise=0.0, stays=0.0, seed=0):
    """Two frames of a picture that moves, dark and red, with noise; its lower half is foggy."""
    generator, (height, width) = torch.Generator().manual_seed(seed), SIZE
    wide = texture(generator, height, width + STEP)
    wide[..., height // 2 :, :] *= 0.25
    wide = 0.3 + wide * torch.tensor([0.03, 0.02, 0.01])[:, None, None]
    frames = torch.cat([wide[..., STEP:], wide[..., :-STEP]])
    frames = frames + noise * torch.randn(2, 1, height, width, generator=generator)
    frames = frames + stays * torch.randn(1, 1, height, width, generator=generator)
    flow = torch.zeros(1, 2, height, width)
    flow[:, 0] = STEP
    return frames[:1], frames[1:], flow, torch.ones(1, height, width, dtype=torch.bool)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.06])
@pytest.mark.parametrize("stays", [0.0, 0.03])
def test_noise_is_told_from_texture(noise, stays):
    image1, image2, flow, kept = footage(noise, stays)
    look = measure_look(image1, image2, flow, kept)
    clean = measure_look(*footage()[:2], flow, kept)
    assert look.shape == LOOK
    # the same in red, green and blue: grey only
    for which, expected in ((NOISE, noise), (STAYS, stays)):
        assert look[0, which].mean() == pytest.approx(expected * 3**0.5, rel=0.2, abs=0.02)
        assert look[1:, which].max() < 0.02
    found, known = look[0, :BANDS].mean((1, 2)), clean[0, :BANDS].mean((1, 2))
    torch.testing.assert_close(found[1:], known[1:], rtol=0.3, atol=0.01)
    torch.testing.assert_close(look[:, MEAN], clean[:, MEAN], atol=0.01, rtol=0)


def test_noise_between_pixels_is_blended():
    image1, image2, flow, kept = footage(0.05)
    flow[:, 0] += 0.5
    blended = measure_look(image1, image2, flow, kept)[0, NOISE].mean()
    assert blended == pytest.approx(0.05 * 3**0.5, rel=0.25)


def test_where_nothing_is_kept_noise_is_no_larger_than_elsewhere():
    image1, image2, flow, kept = footage(0.03)
    image1[..., :64] += 0.3 * torch.rand(1, 1, SIZE[0], 64)  # matches nothing
    kept[..., :64] = False
    look = measure_look(image1, image2, flow, kept)
    assert look[0, NOISE, :, :2].max() < 1.2 * look[0, NOISE, :, 3:].mean()


def test_without_motion_nothing_is_known_to_stay():
    image1, _, flow, kept = footage(0.0, 0.05)
    assert not measure_look(image1, image1, torch.zeros_like(flow), kept)[:, STAYS].any()


def test_the_footage_itself_gets_its_look_back():
    image1, image2, flow, kept = footage()
    look = measure_look(image1, image2, flow, kept)
    look[:, NOISE:MEAN] = 0
    found = give_look(torch.stack([image1, image2]), look[None], torch.Generator())
    again = measure_look(found[0], found[1], flow, kept)
    torch.testing.assert_close(again[:, MEAN:], look[:, MEAN:], atol=0.01, rtol=0.1)
    # what has little contrast has even less, as in this picture
    upper, lower = look[0, 1, :3].mean(), look[0, 1, 3:].mean()
    assert lower < 0.4 * upper
    assert again[0, 1, 3:].mean() < lower


def test_even_scenes_get_contrast_and_noise_of_each_part():
    generator = torch.Generator().manual_seed(2)
    scene = 0.5 + 0.1 * texture(generator, *SIZE)
    look = a_look(0.02)
    look[0, 0, :BANDS, 3:] = 0.1
    look[0, 0, NOISE, :, 4:] = 0.04
    found = give_look(torch.stack([scene, scene]), look, generator)
    upper, lower = found[0, ..., :80, :112], found[0, ..., 112:, :112]
    assert lower.std() > 2.5 * upper.std()
    noise = (found[0] - found[1]).std(dim=(0, 1, 2))  # (W,)
    assert noise[:100].max() < 1e-4
    assert noise[160:].mean() == pytest.approx(0.04 * 2**0.5 / 3**0.5, rel=0.1)


def test_what_stays_is_the_same_in_both_frames():
    look = a_look(0.0)
    look[0, 0, STAYS] = 0.05
    found = give_look(torch.full((2, 1, 3, *SIZE), 0.5), look, torch.Generator())
    assert torch.equal(found[0], found[1])
    assert found[0].std() == pytest.approx(0.05 / 3**0.5, rel=0.1)


def test_grey_footage_makes_grey_scenes():
    found = give_look(torch.rand(2, 1, 3, 16, 24), a_look(), torch.Generator())
    apart = found - found.mean(2, keepdim=True)
    assert apart.std(dim=(0, 3, 4)).max() < 0.01


def test_blank_frames_stay_blank():
    found = give_look(torch.full((2, 1, 3, 16, 24), 0.5), a_look(), torch.Generator())
    assert found.std(dim=(0, 3, 4)).max() < 1e-4


def test_a_share_of_the_pairs_gets_a_look_and_flow_stays(tmp_path):
    path = tmp_path / "look.npy"
    path.write_bytes(encode_look(measure_look(*footage(0.05))))
    looks = read_looks([path, path])
    assert looks.shape == (2, *LOOK)
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
    source = InLook(RandomSource(), a_look(noise=0.02), 0.5, 7)
    whole = list(islice(source.batches(4, 0, HERE), 5))
    rest = list(islice(source.batches(4, 3, HERE), 2))
    for one, other in zip(whole[3:], rest, strict=True):
        assert torch.equal(one.image1, other.image1)
        assert torch.equal(one.image2, other.image2)
    assert not torch.equal(rest[0].image1, rest[1].image1)
