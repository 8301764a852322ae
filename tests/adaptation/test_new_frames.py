"""New second frames show the first one where their flow leads, and hide what is behind."""

import pytest
import torch

from dicl_flow.adaptation.new_frames import clean_flow, new_second_frame
from dicl_flow.ops import warp

SIZE = (40, 56)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def smooth_image(seed=0, batch=1):
    """Waves of some pixels, so that sampling between pixels is nearly exact."""
    coarse = torch.rand(batch, 3, 5, 7, generator=generator(seed))
    return torch.nn.functional.interpolate(coarse, SIZE, mode="bicubic").clamp(0, 1)


def constant_flow(x, y, batch=1):
    return torch.tensor([x, y]).float()[None, :, None, None].repeat(batch, 1, *SIZE)


def with_square(image, flow, motion):
    """A bright square in the middle that moves in another way than the rest."""
    image, flow = image.clone() * 0.5, flow.clone()
    image[..., 14:26, 20:36] = 1.0
    flow[..., 14:26, 20:36] = torch.tensor(motion).float()[:, None, None]
    return image, flow


def smooth_flow():
    y, x = torch.meshgrid(torch.arange(SIZE[0]), torch.arange(SIZE[1]), indexing="ij")
    return torch.stack([3 + 0.1 * (x - 28) - 0.04 * y, -2 + 0.06 * (y - 20) + 0.05 * x])[None]


@pytest.mark.parametrize("seed", range(3))
def test_the_flow_leads_to_the_same_colours(seed):
    image = smooth_image(seed)
    second, flow, valid = new_second_frame(image, smooth_flow(), None, generator(seed))
    assert valid.float().mean() > 0.6
    error = (warp(second, flow) - image).abs().amax(1)[valid]
    assert error.mean() < 0.005
    assert error.max() < 0.03
    assert (second - image).abs().mean() > 0.05  # it did move


def test_the_motion_is_longer_or_shorter_by_one_factor_per_pair():
    image = smooth_image(batch=6)
    given = constant_flow(4, -2, 6)
    _, flow, valid = new_second_frame(image, given, None, generator())
    factor = flow / given
    assert factor.amin((1, 2, 3)).sub(factor.amax((1, 2, 3))).abs().max() < 1e-4
    assert factor.min() >= 0.6 - 1e-4
    assert factor.max() <= 1.5 + 1e-4
    assert factor.std() > 0.1
    assert valid.float().mean((1, 2)).min() > 0.7


def test_what_is_behind_is_hidden():
    image, flow = with_square(smooth_image(), constant_flow(0, 0), (9.0, 0.0))
    orders = set()
    for seed in range(8):
        second, moved, valid = new_second_frame(image, flow, None, generator(seed))
        shift = moved[0, 0, 20, 28].item()
        ahead = round(36 + shift / 2)  # background that the square covers, if it is in front
        is_square = second[0, :, 20, ahead].min().item() > 0.95
        orders.add(is_square)
        assert valid[0, 20, ahead].item() is not is_square
        if is_square:
            assert valid[0, 16:24, 22:34].all()  # its edges are blended
            assert second[0, :, 20, 21].max() < 0.6  # uncovered: background, not the square again
    assert orders == {True, False}  # both happen


def test_the_step_of_a_blurred_flow_is_at_the_edge_of_the_image():
    image, flow = with_square(smooth_image(), constant_flow(0, 0), (9.0, 0.0))
    blurred = torch.nn.functional.avg_pool2d(flow, 5, 1, 2, count_include_pad=False)
    off = (blurred - flow).norm(dim=1) > 1
    still = (clean_flow(blurred, None, image) - flow).norm(dim=1) > 1
    assert still.sum() < 0.2 * off.sum()


def test_unknown_flow_is_guessed_from_what_is_known():
    image = smooth_image()
    flow, valid = smooth_flow(), torch.ones(1, *SIZE, dtype=torch.bool)
    valid[:, 10:18, 30:40] = False
    damaged = flow.where(valid[:, None], torch.nan)
    damaged[..., 12, 32] = 1e9
    assert (clean_flow(damaged, valid, image) - flow).norm(dim=1).max() < 1.5
    by_itself = flow.where(valid[:, None], torch.nan)  # NaN is unknown without a mask, too
    assert (clean_flow(by_itself, None, image) - flow).norm(dim=1).max() < 1.5


@pytest.mark.parametrize("flow", [constant_flow(500, 0), constant_flow(3, 3) * torch.nan])
def test_a_flow_that_says_nothing_still_gives_a_frame(flow):
    second, moved, valid = new_second_frame(smooth_image(), flow, None, generator())
    assert second.isfinite().all()
    assert moved.isfinite().all()
    assert second.min() >= 0
    assert second.max() <= 1
    leaves = (moved[:, 0].abs() >= SIZE[1]).all()
    assert valid.any().item() is not leaves.item()


def test_the_same_seed_gives_the_same_frames_whatever_the_rest_of_the_batch():
    image = torch.cat([smooth_image(1), smooth_image(2)])
    flow = torch.cat([smooth_flow(), -smooth_flow()])
    first, again = (new_second_frame(image, flow, None, generator(4)) for _ in range(2))
    other = new_second_frame(image, flow, None, generator(5))
    for one, two in zip(first, again, strict=True):
        assert one.equal(two)
    assert not first[1].equal(other[1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_frames_are_the_same_on_both_devices():
    image, flow = with_square(smooth_image(), smooth_flow(), (9.0, 0.0))
    here = new_second_frame(image, flow, None, generator())
    there, again = (
        new_second_frame(image.cuda(), flow.cuda(), None, generator()) for _ in range(2)
    )
    for one, two, three in zip(here, there, again, strict=True):
        assert two.equal(three)
        assert ((one.float() - two.cpu().float()).abs() > 0.01).float().mean() < 0.01
