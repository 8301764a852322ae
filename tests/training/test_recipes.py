"""Recipes have the paper's numbers, survive TOML, and name the key of a wrong value."""

import tomllib
from dataclasses import replace

import pytest
from small_training import CONFIG

from dicl_flow.config import AugmentConfig, LossConfig, TrainConfig, structure, to_toml
from dicl_flow.errors import InputError
from dicl_flow.training import read_recipe, recipe_names


def test_recipes_have_the_papers_numbers():
    assert {"chairs-0", "chairs-1", "chairs-2", "things", "sintel", "kitti"} <= set(recipe_names())
    stages = {name: read_recipe(name, []) for name in recipe_names()}
    assert sum(stages[f"chairs-{phase}"].steps for phase in range(3)) == 150_000
    assert [stages[n].start for n in ("chairs-0", "chairs-1", "chairs-2", "things")] == [
        *("", "chairs-0", "chairs-1", "chairs-2")
    ]
    assert [stages[f"chairs-{n}"].model.context for n in range(3)] == [False, True, True]
    assert [stages[f"chairs-{n}"].model.projection for n in range(3)] == [False, False, True]
    assert stages["chairs-0"].loss == LossConfig((), (0.25, 0.25, 0.5, 0.75, 1.0), "averaged")
    assert stages["chairs-0"].augment == AugmentConfig.crop_only((256, 384))
    assert stages["chairs-1"].augment == AugmentConfig()
    expected = {"chairs-2": (64, 1e-3), "things": (16, 2.5e-4), "sintel": (16, 2.5e-4)}
    for name, numbers in expected.items():
        assert (stages[name].batch, stages[name].optimizer.learning_rate) == numbers
        assert stages[name].loss == LossConfig(
            (0.5, 0.5, 0.5, 0.75, 1.0), (0.4, 0.4, 0.4, 0.6, 0.8), "averaged"
        )
    assert stages["chairs-2"].schedule.milestones == (20_000,)
    assert (stages["things"].steps, stages["things"].augment.crop) == (220_000, (384, 768))
    assert stages["sintel"].schedule.milestones == (30_000, 50_000)
    assert stages["kitti"].augment.crop == (256, 1024)
    assert all(stage.optimizer.kind == "adam" for name, stage in stages.items() if name in expected)


def test_configs_survive_toml():
    for config in (CONFIG, *(read_recipe(name, []) for name in recipe_names())):
        assert structure(TrainConfig, tomllib.loads(to_toml(config))) == config
    strange = replace(CONFIG, name='a "b"\n\\ \t\x7fä')
    assert tomllib.loads(to_toml(strange))["name"] == strange.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("stepps=3", "unknown key 'stepps'; did you mean 'steps'"),
        ("optimizer.learning_rat=1", "unknown key 'optimizer.learning_rat'"),
        ("steps=many", "steps must be of type int"),
        ("steps=0", "steps must be at least 1"),
        ("optimizer.learning_rate=-1", "optimizer.learning_rate must be in"),
        ("optimizer.kind=sgd", "unknown optimizer.kind 'sgd'"),
        ("optimizer.average=1", r"optimizer.average must be in \[0, 1\)"),
        ("schedule.kind=cosin", "did you mean 'cosine'"),
        ("schedule.milestones=[5, 2]", "must increase"),
        ("augment.crop=[100, 100]", "multiples of 128, got"),
        ("model.multiple=256", r"multiples of 256 \(model.multiple is 256\), got"),
        ("augment.eraser=2", "eraser must be in"),
        ("loss.refined=[1]", "one weight per level"),
        ("model.context=true", None),
        ("data=[]", "data is empty"),
        ("name.x=1", "name is not a table"),
        ("nonsense", "must be key=value"),
    ],
)
def test_a_wrong_recipe_names_the_key(change, message):
    if message is None:
        assert read_recipe("chairs-1", [change]).model.context
        return
    with pytest.raises(InputError, match=message):
        read_recipe("chairs-1", [change])


def test_batch_norm_needs_more_than_one_pixel():
    smallest = ["augment.crop=[128, 128]", "batch=1"]
    in_parts = ["augment.crop=[128, 128]", "batch=4", "optimizer.accumulate=4"]
    for changes in (smallest, in_parts):
        with pytest.raises(InputError, match=r"two pairs at a time, or a larger augment\.crop"):
            read_recipe("chairs-1", changes)
    assert read_recipe("chairs-1", [*smallest, "optimizer.freeze_norm=true"]).batch == 1
    without_norms = ["model.host=pwcnet", "augment.crop=[64, 64]", "batch=1"]
    assert read_recipe("rendered-0", without_norms).batch == 1
    assert read_recipe("ablation", ["batch=1"]).batch == 1  # 256x256 is one multiple, 2x2 cells


def test_refined_loss_needs_context_nets():
    with pytest.raises(InputError, match=r"loss.refined must be empty"):
        read_recipe("chairs-0", ["loss.refined=[1, 1, 1, 1, 1]"])


def test_unknown_recipes_are_named():
    with pytest.raises(InputError, match="did you mean 'chairs-0'"):
        read_recipe("chair-0", [])
    with pytest.raises(FileNotFoundError, match="no recipe at"):
        read_recipe("nowhere.toml", [])
