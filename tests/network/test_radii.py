"""A network that searches less far has the same weights, and its own parts in the same file."""

import json
from dataclasses import replace

import pytest
import torch
from conftest import SMALL
from networks import randomize_norms_and_biases
from safetensors.torch import load, save

import dicl_flow
from dicl_flow.config import LIVE, ModelConfig, Quality
from dicl_flow.errors import InputError
from dicl_flow.models import build, own_keys, with_radii
from dicl_flow.weights import (
    LIVE_KEY,
    LiveParts,
    Weights,
    encode_weights,
    halve,
    load_model,
    read_weights,
)

NARROW = Quality("narrow", radii=((8, 1),))  # SMALL has the radii 2 and 1
MIDDLE = slice(1, 4)


@pytest.fixture
def network():
    torch.manual_seed(0)
    model = randomize_norms_and_biases(build(SMALL)).double()
    weight = model.levels["8"].projection.weight
    weight.data = torch.randn_like(weight)
    return model


@torch.no_grad()
def test_scores_are_those_of_the_displacements_that_are_left(network):
    features = torch.randn(2, 1, 32, 4, 6, dtype=torch.float64).unbind(0)
    level, narrow = network.levels["8"], with_radii(network, NARROW.radii).levels["8"]
    found, all_scores = narrow.matcher(*features), level.matcher(*features)
    torch.testing.assert_close(found, all_scores[:, :, MIDDLE, MIDDLE])
    only = torch.zeros_like(all_scores[:, 0])
    only[:, MIDDLE, MIDDLE] = all_scores[:, 0, MIDDLE, MIDDLE]
    expected = level.projection(only)[:, MIDDLE, MIDDLE]
    torch.testing.assert_close(narrow.projection(found[:, 0]), expected)
    assert not torch.allclose(expected, only[:, MIDDLE, MIDDLE])


def test_only_the_own_parts_are_copies(network):
    narrow = with_radii(network, NARROW.radii)
    assert [level.radius for level in narrow.config.levels] == [1, 1]
    assert narrow.config.reach == (8, 12)
    assert narrow.features is network.features
    assert narrow.levels["4"] is network.levels["4"]
    assert narrow.levels["8"].matcher.net is network.levels["8"].matcher.net
    assert network.levels["8"].matcher.radius == 2
    mine, theirs = dict(narrow.named_parameters()), dict(network.named_parameters())
    copies = [key for key in mine if mine[key] is not theirs[key]]
    assert copies == [key for key in own_keys(mine, NARROW.radii) if key in mine]
    assert {key.split(".")[2] for key in copies} == {"projection", "context"}


def test_a_network_that_searches_no_farther_stays_itself(network):
    assert with_radii(network, ((8, 2), (4, 3))) is network
    narrow = with_radii(network, NARROW.radii)
    assert with_radii(narrow, NARROW.radii) is narrow


def trained(network):
    """Weights with parts for NARROW that differ from those cut out."""
    state = with_radii(network.float(), NARROW.radii).state_dict()
    own = {key: state[key] for key in own_keys(state, NARROW.radii)}
    own = {k: t + 0.5 if t.is_floating_point() else t for k, t in own.items()}
    return Weights(SMALL, network.state_dict(), live=LiveParts(NARROW.radii, own))


def test_a_file_has_the_parts_beside_the_whole(network, tmp_path):
    path, plain = tmp_path / "live.safetensors", tmp_path / "plain.safetensors"
    weights = trained(network)
    path.write_bytes(encode_weights(weights))
    plain.write_bytes(encode_weights(replace(weights, live=None)))
    found = read_weights(path)
    assert found.live.radii == NARROW.radii
    assert found.trained_for(NARROW)
    key = "levels.8.projection.weight"
    whole, narrow = load_model(found).state_dict(), load_model(found, NARROW).state_dict()
    torch.testing.assert_close(whole[key], network.state_dict()[key])
    torch.testing.assert_close(narrow[key], weights.live.tensors[key])
    cut_out = load_model(read_weights(plain), NARROW).state_dict()[key]
    torch.testing.assert_close(cut_out + 0.5, narrow[key])
    assert encode_weights(replace(found, live=None)) == plain.read_bytes()
    halved = halve(found)
    assert halved.live.tensors[key].dtype == torch.float16
    torch.testing.assert_close(
        load_model(halved, NARROW).state_dict()[key], narrow[key], atol=1e-2, rtol=1e-2
    )


def test_an_estimator_takes_the_trained_parts(network, tmp_path):
    path = tmp_path / "live.safetensors"
    path.write_bytes(encode_weights(trained(network)))
    estimator = dicl_flow.load(path, "cpu", "fp32", "plain", quality=NARROW)
    weight = estimator.model.levels["8"].projection.weight
    torch.testing.assert_close(weight, trained(network).live.tensors["levels.8.projection.weight"])


def test_parts_that_do_not_fit_are_refused_whatever_is_asked_for(network, tmp_path):
    path = tmp_path / "live.safetensors"
    data = encode_weights(trained(network))
    tensors = load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]

    def refused(message, tensors, about):
        path.write_bytes(save(tensors, metadata=about))
        with pytest.raises(InputError, match=message):
            load_model(read_weights(path))

    missing = {k: t for k, t in tensors.items() if k != "live.levels.8.projection.weight"}
    refused(r"missing: live\.levels\.8\.projection\.weight", missing, header)
    unknown = {**tensors, "live.levels.4.projection.weight": torch.zeros(1)}
    refused(r"unknown: live\.levels\.4\.projection\.weight", unknown, header)
    refused("smaller search radii is damaged", tensors, {**header, LIVE_KEY: "[[8]]"})
    refused("smaller search radii is damaged", tensors, {**header, LIVE_KEY: "[[7, 1]]"})
    refused("not smaller than those", tensors, {**header, LIVE_KEY: "[[8, 2]]"})
    refused("unknown: live", tensors, {k: v for k, v in header.items() if k != LIVE_KEY})


def test_info_says_whether_live_was_trained(run, network, tmp_path):
    path = tmp_path / "w.safetensors"
    torch.manual_seed(0)
    config = replace(SMALL, levels=(replace(SMALL.levels[0], radius=3), SMALL.levels[1]))
    weights = Weights(config, build(config).state_dict())
    path.write_bytes(encode_weights(weights))
    assert "radius 1 at 1/8, cut out of the network, not trained for it" in run("info", path)[1]
    narrow = with_radii(build(config), LIVE.radii)
    own = {key: narrow.state_dict()[key] for key in own_keys(narrow.state_dict(), ((8, 1),))}
    path.write_bytes(encode_weights(replace(weights, live=LiveParts(((8, 1),), own))))
    assert "radius 1 at 1/8, trained for it" in run("info", path)[1]


@pytest.mark.parametrize("host", ["vcn", "pwcnet"])
def test_other_hosts_are_refused(host):
    with pytest.raises(InputError, match=f"searches less far, which host '{host}' cannot"):
        LIVE.check_for(ModelConfig(host=host))


@pytest.mark.parametrize("radii", [((4, 1), (8, 1)), ((8, 1), (8, 2)), ((5, 1),), ((8, 0),)])
def test_radii_that_make_no_sense_are_refused(radii):
    with pytest.raises(InputError, match="radi"):
        Quality("odd", radii=radii)
