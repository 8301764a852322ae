"""Every variant of the network runs and trains, in every precision and batch size."""

import itertools

import pytest
import torch
from conftest import SMALL

from dicl_flow.config import HOSTS, MATCHERS, LevelConfig, ModelConfig
from dicl_flow.models import build, network_type
from dicl_flow.models.network import _HOSTS

LEVELS = SMALL.levels


def test_config_knows_the_hosts_there_are():
    assert tuple(_HOSTS) == HOSTS


@pytest.mark.parametrize("host", HOSTS)
def test_the_type_of_a_network_is_known_before_it_is_built(host):
    config = SMALL.with_host(host)
    assert type(build(config)) is network_type(config)


@pytest.mark.parametrize(
    ("matcher", "projection", "context"),
    list(itertools.product(MATCHERS, (True, False), (True, False))),
)
def test_every_variant_runs_and_trains(matcher, projection, context):
    config = ModelConfig(matcher=matcher, projection=projection, context=context, levels=LEVELS)
    model = build(config)
    flows = model(*torch.rand(2, 2, 3, 16, 32))
    assert [tuple(flow.refined.shape) for flow in flows] == [(2, 2, 2, 4), (2, 2, 4, 8)]
    assert all(flow.entropy.shape == (2, 1, *flow.matched.shape[-2:]) for flow in flows)
    sum((flow.matched + flow.refined).square().sum() for flow in flows).backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None]
    assert not idle


@pytest.mark.parametrize("strides", [(64, 32, 16, 8, 4), (16, 8), (8,), (4, 2)])
def test_levels_come_from_the_config(strides):
    config = ModelConfig(levels=tuple(LevelConfig(s, 1, ((4, 1),)) for s in strides))
    side = config.pad_multiple
    with torch.no_grad():
        flows = build(config).eval()(*torch.rand(2, 1, 3, side, side))
    assert [flow.refined.shape[-1] for flow in flows] == [side // s for s in strides]


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_precision_runs_and_flow_is_at_least_float32(dtype):
    torch.manual_seed(0)
    model = build(SMALL).eval().to(dtype)
    with torch.no_grad():
        flows = model(*torch.rand(2, 1, 3, 32, 32).to(dtype))
    expected = torch.promote_types(dtype, torch.float32)
    assert all(part.dtype == expected for flow in flows for part in flow[:3])
    assert all(part.isfinite().all() for flow in flows for part in flow[:3])


def test_batch_and_single_give_the_same_flow():
    torch.manual_seed(0)
    model = build(SMALL).eval()
    image1, image2 = torch.rand(2, 3, 3, 32, 48)
    with torch.no_grad():
        together = model(image1, image2)[-1].refined
        alone = model(image1[1:2], image2[1:2])[-1].refined
    torch.testing.assert_close(together[1:2], alone, atol=1e-4, rtol=0)


@pytest.mark.heavy
def test_smallest_paper_input_runs():
    """128 px: the coarsest map is 2x2, smaller than the shifts."""
    with torch.no_grad():
        flows = build(ModelConfig()).eval()(*torch.rand(2, 1, 3, 128, 128))
    assert flows[-1].refined.isfinite().all()


@pytest.mark.parametrize("shape", [(1, 3, 16, 24), (1, 3, 17, 16)])
def test_sides_that_do_not_fit_are_refused(shape):
    with pytest.raises(ValueError, match="multiples of 16"):
        build(SMALL)(torch.rand(shape), torch.rand(shape))


def test_images_that_differ_are_refused():
    with pytest.raises(ValueError, match="shapes differ"):
        build(SMALL)(torch.rand(1, 3, 16, 16), torch.rand(1, 3, 16, 32))


@pytest.mark.heavy
def test_works_under_torch_export_for_any_batch():
    torch.manual_seed(0)
    model = build(SMALL).eval()
    batch = {0: torch.export.Dim("batch", max=64)}
    images = tuple(torch.rand(2, 2, 3, 32, 48))
    program = torch.export.export(model, images, dynamic_shapes=(batch, batch))
    image1, image2 = torch.rand(2, 3, 3, 32, 48)
    with torch.no_grad():
        expected, found = model(image1, image2), program.module()(image1, image2)
    torch.testing.assert_close(found[-1].refined, expected[-1].refined)


def test_building_leaves_the_global_state_alone():
    default = torch.get_default_dtype()
    build(SMALL)
    assert torch.get_default_dtype() == default
    assert torch.is_grad_enabled()
