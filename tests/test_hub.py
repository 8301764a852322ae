"""The doors of the hubs: torch.hub, and a folder as Hugging Face has them."""

import json
from pathlib import Path

import pytest
import torch
from golden import formula
from huggingface_hub import PyTorchModelHubMixin

import dicl_flow
from dicl_flow.hub import HubNetwork
from dicl_flow.weights import read_weights

REPOSITORY = Path(__file__).parents[1]


def load_hub(entry, **arguments):
    return torch.hub.load(str(REPOSITORY), entry, source="local", **arguments)


def test_torch_hub_loads_the_estimator_and_the_network(small_weights):
    frames = formula.pair(37, 51)
    result = load_hub("estimator", weights=str(small_weights), device="cpu")(*frames)
    expected = dicl_flow.load(small_weights, device="cpu")(*frames)
    assert (result.flow == expected.flow).all()
    assert isinstance(load_hub("network"), torch.nn.Module)  # the packaged weights


def test_a_hub_folder_goes_round(small_weights, tmp_path):
    model = HubNetwork.from_weights(small_weights)
    assert isinstance(model, PyTorchModelHubMixin)
    model.save_pretrained(tmp_path / "hub")
    names = sorted(path.name for path in (tmp_path / "hub").iterdir())
    assert names == ["README.md", "config.json", "model.safetensors"]
    again = HubNetwork.from_pretrained(tmp_path / "hub")
    assert again.network.config == model.network.config
    assert not again.training
    for key, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor)
    saved = read_weights(tmp_path / "hub" / "model.safetensors")
    assert saved.about == read_weights(small_weights).about


def test_the_file_in_the_folder_is_an_ordinary_weights_file(small_weights, tmp_path):
    HubNetwork.from_weights(small_weights).save_pretrained(tmp_path)
    frames = formula.pair(37, 51)
    expected = dicl_flow.load(small_weights)(*frames)
    assert (dicl_flow.load(tmp_path / "model.safetensors")(*frames).flow == expected.flow).all()
    config = json.loads((tmp_path / "config.json").read_text())
    assert [level["stride"] for level in config["levels"]] == [8, 4]


def test_a_config_that_disagrees_is_refused(small_weights, tmp_path):
    HubNetwork.from_weights(small_weights).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"replicate"', '"white"'))
    with pytest.raises(dicl_flow.InputError, match=r"config\.json is not the config"):
        HubNetwork.from_pretrained(tmp_path)


def test_a_fresh_network_can_be_saved(tmp_path):
    model = HubNetwork({"levels": [{"stride": 4, "radius": 1}], "projection": False})
    model.save_pretrained(tmp_path)
    assert not HubNetwork.from_pretrained(tmp_path).network.config.projection
