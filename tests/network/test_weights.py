"""Weights load exactly as saved; damaged, foreign and unsafe files are refused."""

import pickle
import zipfile
from dataclasses import replace

import pytest
import torch
from conftest import SMALL
from networks import Evil

from dicl_flow.config import ModelConfig
from dicl_flow.errors import InputError
from dicl_flow.models import build
from dicl_flow.weights import (
    PACKAGED_SHA256,
    Weights,
    encode_weights,
    halve,
    load_model,
    packaged_names,
    read_weights,
    resolve,
)
from dicl_flow.weights.legacy import import_legacy


def write(path, content):
    torch.save(content, path)
    return path


def test_saved_weights_load_with_no_further_word(small_weights):
    weights = read_weights(small_weights)
    assert weights.config == SMALL
    assert weights.about == {"recipe": "none"}
    assert len(weights.sha256) == 64
    state = load_model(weights).state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in weights.tensors.items())


@pytest.mark.parametrize("host", ["dicl", "pwcnet", "vcn"])
def test_all_of_a_loaded_network_is_from_the_file_and_no_random_number_is_drawn(host):
    config = ModelConfig(host=host, levels=SMALL.levels)
    whole = Weights(config, build(config).state_dict())
    file = halve(whole).tensors
    before = torch.get_rng_state()
    model = load_model(Weights(config, file))
    assert torch.equal(torch.get_rng_state(), before)
    parts = dict(model.named_parameters()) | dict(model.named_buffers())
    assert parts.keys() == file.keys()
    for key, tensor in file.items():
        assert torch.equal(parts[key], tensor.to(parts[key].dtype))
        assert parts[key].dtype in (torch.float32, torch.int64)
        assert parts[key].is_contiguous()


def test_a_loaded_network_is_a_copy():
    """Weights may be those of a network in training, channels last."""
    trained = build(SMALL).to(memory_format=torch.channels_last)
    kept = {key: tensor.clone() for key, tensor in trained.state_dict().items()}
    for parameter in load_model(Weights(SMALL, trained.state_dict())).parameters():
        assert parameter.requires_grad
        assert parameter.is_contiguous()
        parameter.data.add_(1)
    assert all(torch.equal(kept[key], tensor) for key, tensor in trained.state_dict().items())


def test_half_precision_files_load_as_float32(tmp_path, small_weights, run):
    path = tmp_path / "half.safetensors"
    assert run("convert", small_weights, "-o", path, "--half", "--quiet")[0] == 0
    halved, whole = read_weights(path), read_weights(small_weights)
    assert (halved.config, halved.about) == (whole.config, whole.about)
    kinds = {"running_var": torch.float32, "conv.weight": torch.float16}
    for ending, dtype in kinds.items():
        assert {t.dtype for key, t in halved.tensors.items() if key.endswith(ending)} == {dtype}
    model = load_model(halved)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, whole.tensors[key], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s, "epoch": 3}])
@pytest.mark.parametrize("prefix", ["", "module.", "model.", "model.module.", "module.model."])
def test_every_wrapping_of_a_checkpoint_is_understood(tmp_path, golden_state, wrap, prefix):
    state = {prefix + key: tensor for key, tensor in golden_state.items()}
    weights = import_legacy(write(tmp_path / "x.pth.tar", wrap(state)))
    assert len(weights.tensors) == 522
    assert weights.config == ModelConfig(matcher="dicl")


@pytest.mark.parametrize(
    ("dropped", "config"),
    [
        (("dap_layer",), ModelConfig(matcher="dicl", projection=False)),
        (
            ("dap_layer", "context_net"),
            ModelConfig(matcher="dicl", projection=False, context=False),
        ),
    ],
)
def test_early_phases_convert_to_a_config_that_says_so(tmp_path, golden_state, dropped, config):
    state = {key: t for key, t in golden_state.items() if not key.startswith(dropped)}
    weights = import_legacy(write(tmp_path / "x.pth", state))
    assert weights.config == config
    load_model(weights)


def test_padding_of_the_kitti_weights_is_kept(checkpoint):
    assert import_legacy(checkpoint, padding="white").config.padding == "white"


def test_missing_unknown_and_misshapen_tensors_are_listed(tmp_path, golden_state):
    state = dict(golden_state)
    del state["matching2.match.0.conv.weight"]
    state["stranger.weight"] = torch.zeros(1)
    state["dap_layer3.dap_layer.conv.weight"] = torch.zeros(81, 81, 1, 1)
    with pytest.raises(InputError) as error:
        import_legacy(write(tmp_path / "x.pth", state))
    message = str(error.value)
    assert "missing: levels.4.matcher.net.0.conv.weight" in message
    assert "unknown: stranger.weight" in message
    assert "levels.8.projection.weight (81, 81, 1, 1) instead of (49, 49, 1, 1)" in message


def test_a_checkpoint_of_another_network_is_refused_briefly(tmp_path):
    state = torch.nn.Linear(2, 2).state_dict()
    with pytest.raises(InputError, match=r"not a DICL-Flow checkpoint.*and \d+ more"):
        import_legacy(write(tmp_path / "x.pth", state))


@pytest.mark.parametrize(
    "content",
    [
        {"state_dict": {"a": Evil()}},
        {"state_dict": {"a": 3}},
        {"state_dict": {}},
        [1, 2],
    ],
)
def test_what_is_no_state_dict_is_refused_and_never_run(tmp_path, content, capsys):
    with pytest.raises(InputError):
        import_legacy(write(tmp_path / "x.pth", content))
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"hello", b"PK\x03\x04 broken zip", pickle.dumps(Evil())])
def test_other_files_are_refused(tmp_path, content, capsys):
    path = tmp_path / "x.pth.tar"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.pth\.tar"):
        import_legacy(path)
    assert "executed" not in capsys.readouterr().out


def test_loading_a_pickle_points_to_convert(checkpoint):
    with pytest.raises(InputError, match="run 'dicl-flow convert"):
        read_weights(checkpoint)


@pytest.mark.parametrize("start", [b"PK", b"\x80\x02"])
def test_a_file_that_begins_like_a_pickle_is_none(tmp_path, small_weights, start):
    weights, path = read_weights(small_weights), tmp_path / "long.safetensors"
    length = int.from_bytes(encode_weights(replace(weights, about={"note": ""}))[:8], "little")
    missing = int.from_bytes(start, "little") - length
    note = "x" * (missing % (1 << 16))
    path.write_bytes(encode_weights(replace(weights, about={"note": note})))
    assert path.read_bytes()[:2] == start
    assert read_weights(path).about["note"] == note


def test_other_safetensors_are_refused(tmp_path):
    import safetensors.torch

    path = tmp_path / "x.safetensors"
    path.write_bytes(b"hello, this is text")
    with pytest.raises(InputError, match="not a safetensors file"):
        read_weights(path)
    path.write_bytes(safetensors.torch.save({"a": torch.zeros(1)}))
    with pytest.raises(InputError, match="no dicl-flow config"):
        read_weights(path)


def test_weights_that_do_not_fit_their_config_are_refused():
    weights = Weights(SMALL, build(ModelConfig(projection=False, levels=SMALL.levels)).state_dict())
    with pytest.raises(InputError, match=r"missing: levels\.4\.projection\.weight"):
        load_model(weights)


def test_names_are_resolved_or_explained(tmp_path, small_weights):
    assert resolve(small_weights) == small_weights
    with pytest.raises(InputError, match="is a folder"):
        resolve(tmp_path)
    with pytest.raises(FileNotFoundError, match="no weights file at"):
        resolve("some/where.safetensors")
    with pytest.raises(InputError, match="unknown weights 'sintell'"):
        resolve("sintell")


def test_packaged_weights_are_the_listed_ones_and_the_default():
    assert packaged_names() == sorted(PACKAGED_SHA256)
    for name, sha256 in PACKAGED_SHA256.items():
        weights = read_weights(resolve(name))
        assert weights.sha256 == sha256
        assert {"recipe", "data", "pairs", "training", "metrics"} <= weights.about.keys()
        load_model(weights)
    assert resolve(None) == resolve("rendered")


def test_damaged_packaged_weights_are_refused(tmp_path, monkeypatch, small_weights):
    monkeypatch.setattr("dicl_flow.weights._PACKAGED", small_weights.parent)
    with pytest.raises(InputError, match="is damaged"):
        read_weights(resolve("small"))


def test_numbers_that_no_network_has_are_refused(tmp_path):
    state, path = build(SMALL).state_dict(), tmp_path / "x.safetensors"
    key = next(iter(state))
    broken = {**state, key: torch.full_like(state[key], torch.nan)}
    path.write_bytes(encode_weights(Weights(SMALL, broken)))
    with pytest.raises(InputError, match=rf"x\.safetensors: NaN or infinite values in {key}"):
        read_weights(path)
    path.write_bytes(encode_weights(Weights(SMALL, {**state, key: state[key].to(torch.int8)})))
    with pytest.raises(InputError, match=rf"x\.safetensors: .* wrong type: {key} int8"):
        load_model(read_weights(path))


def test_a_config_cannot_ask_for_a_network_that_fills_the_memory(tmp_path):
    layers = ", ".join(["[4096, 1]"] * 400)  # 240 GB
    text = f'{{"levels": [{{"stride": 8, "radius": 1, "context": [{layers}]}}]}}'
    with pytest.raises(InputError, match="do not fit the network; missing"):
        load_model(Weights(ModelConfig.from_json(text), {}))
    with pytest.raises(InputError, match="radius must be 1 to 64"):
        ModelConfig.from_json('{"levels": [{"stride": 8, "radius": 1000000}]}')


def test_tensors_that_are_not_plain_are_refused(tmp_path, golden_state):
    key = next(iter(golden_state))
    path = write(tmp_path / "x.pth", {**golden_state, key: torch.zeros(2, 2).to_sparse()})
    with pytest.raises(InputError, match=f"'{key}' is not a tensor"):
        import_legacy(path)


class Bomb:
    def __reduce__(self):
        return bytearray, (2**40,)


def test_a_checkpoint_cannot_fill_the_memory(tmp_path):
    path = write(tmp_path / "x.pth", {"state_dict": Bomb()})
    with pytest.raises(InputError, match="is refused"):
        import_legacy(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"x")
    with pytest.raises(InputError, match="is refused"):
        import_legacy(path)
