"""Configs survive JSON and TOML, are frozen, and name the key of a wrong value."""

import pytest

from dicl_flow.config import LevelConfig, ModelConfig, read_toml_table, structure
from dicl_flow.errors import InputError


def test_json_round_trip():
    config = ModelConfig(matcher="cosine", projection=False, levels=(LevelConfig(8, 2, ((4, 1),)),))
    assert ModelConfig.from_json(config.to_json()) == config
    assert ModelConfig.from_json("{}") == ModelConfig()


def test_toml(tmp_path):
    path = tmp_path / "model.toml"
    path.write_text("""
        matcher = "reduced"
        levels = [{ stride = 8, context = [[16, 1], [8, 2]] }, { stride = 4, radius = 2 }]
    """)
    config = structure(ModelConfig, read_toml_table(path))
    assert config.matcher == "reduced"
    assert config.levels == (LevelConfig(8, 3, ((16, 1), (8, 2))), LevelConfig(4, 2))
    assert config.pad_multiple == 16
    assert config.reach == (24, 32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"matchr": "dot"}', "unknown key 'matchr'; did you mean 'matcher'"),
        ('{"levels": [{"stride": 8, "radios": 1}]}', r"unknown key 'levels\[0\]\.radios'"),
        ('{"levels": [{"radius": 1}]}', r"levels\[0\] lacks the key 'stride'"),
        ('{"levels": []}', "at least one level"),
        ('{"levels": 3}', "levels must be a list"),
        ('{"levels": [3]}', r"levels\[0\] must be a table"),
        ('{"levels": [{"stride": 8, "context": [[1]]}]}', "must have 2 entries"),
        ('{"projection": 1}', "projection must be of type bool, got 1"),
        ('{"feature_channels": "32"}', "feature_channels must be of type int"),
        ('{"feature_channels": true}', "feature_channels must be of type int"),
        ('{"feature_channels": 0}', "feature_channels must be 1 to 4096"),
        ('{"matcher": "dcil"}', "did you mean 'dicl'"),
        ('{"host": "pwc"}', "unknown host"),
        ('{"padding": "wite"}', "did you mean 'white'"),
        ('{"max_pixels": 100}', "max_pixels goes with padding 'resize'"),
        ('{"frame_size": [384, 512]}', "frame_size goes with padding 'resize'"),
        ('{"frame_size": [384], "padding": "resize"}', r"must be \(height, width\)"),
        ('{"frame_size": [384, 500], "padding": "resize"}', "must be multiples of 128"),
        ('{"multiple": 0}', "multiple must be 1 to 4096"),
        ('{"levels": [{"stride": 4}, {"stride": 8}]}', "from coarse to fine"),
        ('{"levels": [{"stride": 12}]}', "stride must be one of"),
        ('{"levels": [{"stride": 4, "radius": 0}]}', "radius must be 1 to 64"),
        ('{"levels": [{"stride": 4, "context": [[0, 1]]}]}', "context layers"),
        ("{", "not valid JSON"),
        ("[]", "must be a table"),
    ],
)
def test_a_bad_config_names_the_key(text, message):
    with pytest.raises(InputError, match=message):
        ModelConfig.from_json(text)


def test_a_bad_toml_file_is_named(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("levels = [")
    with pytest.raises(InputError, match=r"bad\.toml is not valid TOML"):
        read_toml_table(path)


def test_configs_are_frozen():
    with pytest.raises(AttributeError):
        ModelConfig().matcher = "dot"  # type: ignore[misc]
