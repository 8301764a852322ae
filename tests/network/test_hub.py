"""Networks loaded from torch.hub or a Hugging Face folder are those that were saved."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from golden import formula
from huggingface_hub import PyTorchModelHubMixin

import dicl_flow
from dicl_flow.config import CUES, Calibration
from dicl_flow.hub import HubNetwork
from dicl_flow.weights import encode_weights, read_weights

pytestmark = pytest.mark.heavy

REPOSITORY = Path(__file__).parents[2]


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


@pytest.fixture
def calibrated(small_weights, tmp_path):
    """Weights that are sure of little, and whose description would break a table."""
    calibration = Calibration(-1.0, *[0.3] * len(CUES))
    about = {"recipe": "none | some", "metrics": "EPE 1.23\non two pairs"}
    path = tmp_path / "calibrated.safetensors"
    weights = replace(read_weights(small_weights), calibration=calibration, about=about)
    path.write_bytes(encode_weights(weights))
    return path


def test_the_estimator_of_the_hub_keeps_the_calibration(calibrated, tmp_path):
    HubNetwork.from_weights(calibrated).save_pretrained(tmp_path / "hub")
    network = HubNetwork.from_pretrained(tmp_path / "hub")
    frames = formula.pair(37, 51)
    found = network.estimator(device="cpu", precision="fp32")(*frames)
    expected = dicl_flow.load(calibrated, device="cpu", precision="fp32")(*frames)
    assert (found.flow == expected.flow).all()
    assert (found.confidence == expected.confidence).all()
    bare = dicl_flow.FlowEstimator(network.network, device="cpu", precision="fp32")(*frames)
    assert abs(bare.confidence - expected.confidence).max() > 0.1


def test_the_model_card_says_what_the_weights_are(calibrated, tmp_path):
    HubNetwork.from_weights(calibrated).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "More Information Needed" not in card
    for text in (
        "license: apache-2.0",
        "| recipe | none \\| some |",
        "| metrics | EPE 1.23 on two pairs |",
        "| network | dicl, 2 levels |",
        "the probability that the flow is right to 1 px",
        '.from_pretrained("OWNER/NAME").estimator()',
        "## Licence",
    ):
        assert text in card, text


def test_the_card_of_a_network_without_calibration_says_so(small_weights):
    card = HubNetwork.from_weights(small_weights).generate_model_card()
    assert "| confidence | not calibrated |" in card.content
