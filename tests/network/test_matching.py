"""Every matcher keeps the contract of scores, learns, and finds a known shift."""

import pytest
import torch
from torch import nn

from dicl_flow.config import MATCHERS
from dicl_flow.config.model import STRIDED_MATCHERS
from dicl_flow.errors import InputError
from dicl_flow.models.matching import _METRICS, PAIRWISE_NETS, build_matcher


def test_config_knows_the_matchers_there_are():
    assert (*_METRICS, *PAIRWISE_NETS) == MATCHERS


@pytest.mark.parametrize("name", MATCHERS)
def test_config_knows_which_matchers_need_even_sides(name):
    layers = build_matcher(name, channels=4, radius=1).modules()
    strides = {layer.stride for layer in layers if isinstance(layer, nn.Conv2d)}
    assert strides - {(1, 1)} == ({(2, 2)} if name in STRIDED_MATCHERS else set())


@pytest.mark.parametrize("name", MATCHERS)
@pytest.mark.parametrize("size", [(4, 6), (5, 7), (1, 1)])
def test_every_matcher_keeps_the_contract(name, size):
    matcher = build_matcher(name, channels=8, radius=2)
    volume = matcher(torch.rand(2, 8, *size), torch.rand(2, 8, *size))
    assert volume.shape == (2, matcher.out_channels, 5, 5, *size)
    assert matcher.radius == 2


@pytest.mark.parametrize("name", MATCHERS)
def test_every_matcher_learns(name):
    matcher = build_matcher(name, channels=4, radius=1)
    features1, features2 = torch.rand(2, 1, 4, 6, 6)
    (matcher(features1, features2) * torch.rand(1, 1, 3, 3, 6, 6)).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in matcher.parameters())


@pytest.mark.parametrize("name", ["dot", "cosine"])
def test_metrics_find_a_known_shift(name):
    """features1(p) = features2(p + (1, -1)), so that displacement must score highest."""
    features2 = torch.nn.functional.one_hot(torch.randperm(64).reshape(8, 8), 64).float()
    features2 = features2.permute(2, 0, 1)[None]
    features1 = torch.zeros_like(features2)
    features1[..., 1:, :-1] = features2[..., :-1, 1:]
    scores = build_matcher(name, 64, 2)(features1, features2)[0, 0]
    assert scores[:, :, 4, 3].argmax() == (1 + 2) * 5 + (-1 + 2)


def test_cosine_ignores_length_and_dot_does_not():
    features1, features2 = torch.rand(2, 1, 4, 3, 3)
    for name, same in (("cosine", True), ("dot", False)):
        matcher = build_matcher(name, 4, 1)
        a, b = matcher(features1, features2), matcher(features1, 3 * features2)
        assert torch.allclose(a, b, atol=1e-5) == same


@pytest.mark.parametrize("name", ["mlp", "reduced"])
def test_pixelwise_nets_are_blind_to_the_neighbourhood(name):
    matcher = build_matcher(name, 4, 1).eval()
    features1, features2 = torch.rand(2, 1, 4, 5, 5)
    before = matcher(features1, features2)
    features1[..., 0, 0] = 7
    changed = (matcher(features1, features2) != before).any(1).any(1).any(1)[0]
    assert changed.nonzero().tolist() == [[0, 0]]


def test_dicl_sees_the_neighbourhood():
    matcher = build_matcher("dicl", 4, 1).eval()
    features1, features2 = torch.rand(2, 1, 4, 6, 6)
    before = matcher(features1, features2)
    features1[..., 0, 0] = 7
    assert (matcher(features1, features2) != before)[0, 0, 1, 1, 1, 1]


def test_unknown_matcher_names_the_nearest():
    with pytest.raises(
        InputError, match=r"unknown matcher 'dcil'; did you mean 'dicl'\? known: dot"
    ):
        build_matcher("dcil", 8, 3)
