"""`dicl-flow reproduce`: the stages of the paper as one chain, on fake data in their layouts."""

import json
import re
import shlex
import signal
from pathlib import Path

import pytest
from children import SUPPORT, run_forked_child
from conftest import TINY_LEVEL
from fake_trees import make_chairs, make_kitti15, make_sintel, make_things, make_things_full
from signal_child import signal_after

from dicl_flow.errors import InputError
from dicl_flow.lab.variants import STUDIES, paper_variants
from dicl_flow.training import chain as pace
from dicl_flow.training import read_recipe
from dicl_flow.training.chain import TARGETS, plan_chain
from dicl_flow.weights import read_weights

SMALL = [
    *("steps=3", "batch=2", "workers=0", "save_every=2", "validate_every=2", "picture_every=0"),
    *(TINY_LEVEL, "model.matcher=dot", "augment.crop=[16,32]", "loss.matched=[0.8]"),
    *(f"{stage}:loss.refined=[1.0]" for stage in TARGETS["all"][1:]),
]
CHANGES = [word for change in SMALL for word in ("--set", change)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The words that name all data sets."""
    root = tmp_path_factory.mktemp("data")
    makers = {"chairs": make_chairs, "things-clean": make_things, "sintel-clean": make_sintel}
    places = {name: make(root / name, size=(20, 40)) for name, make in makers.items()}
    places["sintel-final"] = places["sintel-clean"]
    places["kitti15"] = make_kitti15(root / "kitti", size=(20, 40))
    return [word for name, place in places.items() for word in ("--data", f"{name}={place}")]


@pytest.fixture
def short_pace(monkeypatch):
    monkeypatch.setattr(pace, "_STEPS", 2)


@pytest.mark.heavy
@pytest.mark.usefixtures("short_pace", "one_thread")
def test_the_whole_chain_killed_and_resumed(data, run, tmp_path, monkeypatch):
    """Killed in the middle of a stage, run again: the same weights as without interruption."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    words = [*data, *CHANGES, "--quiet", "--json", "-o"]
    code, printed, err = run("reproduce", "all", *words, whole)
    assert (code, err) == (0, "")
    document = json.loads(printed)
    assert [stage["name"] for stage in document["stages"]] == list(TARGETS["all"])
    assert all(stage["seconds"] > 0 for stage in document["stages"])
    assert document["finished"]
    assert set(document["results"]) == set(TARGETS["all"])

    monkeypatch.setattr(pace, "measure_pace", lambda *_: pace.Pace(1.0, 1.0))  # once is enough
    again = ["reproduce", "chairs", *words, broken]
    killed = run_forked_child(SUPPORT / "reproduce_child.py", "chairs-1", "2", *again)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (broken / "chairs-2").exists()
    assert run(*again)[0] == 0
    for name in TARGETS["chairs"]:
        for file in ("best.safetensors", "weights.safetensors"):
            assert (broken / name / file).read_bytes() == (whole / name / file).read_bytes(), name
    for name, before in (("things", "chairs-2"), ("sintel", "things"), ("kitti", "things")):
        about = read_weights(whole / name / "weights.safetensors").about
        assert about["started_from"].startswith(f"{before}/best.safetensors")

    # all is finished: nothing is trained, and no data is needed
    before = (whole / "kitti" / "last.ckpt").stat().st_mtime_ns
    code, printed, _ = run("reproduce", "all", *CHANGES, "--quiet", "--json", "-o", whole)
    assert code == 0
    assert all(stage["finished"] for stage in json.loads(printed)["stages"])
    assert (whole / "kitti" / "last.ckpt").stat().st_mtime_ns == before


@pytest.mark.heavy
def test_a_signal_at_the_end_of_a_stage_ends_the_chain(data, run, tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "measure_pace", lambda *_: pace.Pace(1.0, 1.0))
    signal_after("SIGINT", 2, "dicl_flow.training.run_folder:RunFolder.save", monkeypatch.setattr)
    words = ["reproduce", "chairs", *data, *CHANGES, "--quiet", "-o", tmp_path]
    assert run(*words)[0] == 128 + signal.SIGINT
    assert (tmp_path / "chairs-0" / "finished.json").is_file()
    assert not (tmp_path / "chairs-1").exists()


def test_a_dry_run_tells_the_plan_and_what_is_missing(data, run, tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "measure_pace", lambda *_: pace.Pace(step=20.0, validation=0.0))
    words = ["reproduce", "things", *data[:2], *CHANGES, "--dry-run", "-o", tmp_path / "out"]
    code, printed, _ = run(*words)
    assert code == 0
    assert "chairs-0  3 steps of 2 pairs, 6 pairs in all, 60 s" in printed
    assert "chairs: 3 pairs in" in printed
    assert "chairs:val: 1 pair in" in printed
    assert "things-clean:val: the recipe needs 'things-clean:val': give its folder" in printed
    assert "in all: time unknown without the data" in printed
    assert not (tmp_path / "out").exists()


def test_missing_data_is_named_before_anything_starts(data, run, tmp_path):
    code, _, err = run("reproduce", "all", *data[:2], *CHANGES, "-o", tmp_path / "out")
    assert code == 2
    for name in ("things-clean", "sintel-clean", "sintel-final", "kitti15"):
        assert f"--data {name}=PATH" in err
    assert "chairs" not in err
    assert not (tmp_path / "out").exists()


def test_the_stages_are_those_of_the_paper(tmp_path):
    stages = {stage.config.name: stage.config for stage in plan_chain("all", tmp_path, [])}
    assert [entry.name for entry in stages["things"].data] == ["things-clean:authors"]
    assert all(stage.validate_every and stage.validation for stage in stages.values())
    bare = plan_chain("kitti", tmp_path, [], without_projection=True)
    assert not any(stage.config.model.projection for stage in bare)
    assert sum(stage.config.steps for stage in bare) == 430_000


def plan(run, *words):
    code, printed, err = run(*words, "--dry-run", "--json", "--quiet")
    assert (code, err) == (0, "")
    return json.loads(printed)


def test_reproduce_and_ablate_have_the_same_stages(run, tmp_path, monkeypatch):
    """Name, steps, batch, pairs, data, start and optimizer, for every metric of table 3."""
    monkeypatch.setattr(pace, "measure_pace", lambda *_: pace.Pace(1.0, 0.0))
    places = {"chairs": make_chairs(tmp_path / "c", (8, 8)), "things-clean": tmp_path / "t"}
    make_things(tmp_path / "t", (8, 8))
    data = [f"--data={name}={place}" for name, place in places.items()]
    output = ["-o", tmp_path / "out", "--device", "cpu"]
    whole = plan(run, "reproduce", "all", *data, *output)["stages"]
    study = plan(run, "ablate", "metrics", "--protocol", "paper", *data, *output)
    assert [entry["variant"] for entry in study["variants"]] == list(STUDIES["metrics"])
    for entry in study["variants"]:
        assert entry["stages"] == whole[:4]
    things = study["variants"][-1]["stages"][3]
    assert [need["name"] for need in things["data"]] == ["things-clean:authors", "things-clean:val"]
    assert (things["start"], things["start_from"]) == ("chairs-2", "best")
    assert (things["steps"], things["batch"], things["pairs"]) == (220_000, 16, 3_520_000)
    assert things["optimizer"]["precision"] == "fp32"
    assert study["seconds"] == 5 * (150_000 + 220_000)


@pytest.mark.parametrize("changes", [[], ["seed=3", "things:steps=7", "start_from=last"]])
def test_the_metric_dicl_is_the_network_without_dap(tmp_path, changes):
    bare = plan_chain("things", tmp_path, changes, without_projection=True)
    (variant,) = paper_variants("metrics", changes, [3 if changes else 0], ["DICL"])
    assert tuple(stage.config for stage in bare) == variant.stages
    (variant,) = paper_variants("projection", changes, [3 if changes else 0], ["DICL"])
    assert tuple(s.config for s in plan_chain("things", tmp_path, changes)) == variant.stages


def test_train_has_the_stages_of_the_chain(tmp_path):
    for stage in plan_chain("all", tmp_path, []):
        assert stage.config == read_recipe(stage.config.name, [])


PAGE = Path(__file__).parents[2] / "docs/reproducing.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="without docs/")
@pytest.mark.parametrize("full", [False, True])
def test_the_page_s_command_on_both_layouts_of_things(run, tmp_path, monkeypatch, full):
    monkeypatch.setattr(pace, "measure_pace", lambda *_: pace.Pace(1.0, 0.0))
    command = re.search(r"^dicl-flow (reproduce all .*?[^\\])$", PAGE.read_text(), re.M | re.S)[1]
    words = shlex.split(command.replace("\\\n", " "))
    places = dict(word.split("=") for word in words if "=" in word)
    makers = {"chairs": make_chairs, "sintel-clean": make_sintel, "kitti15": make_kitti15}
    makers["things-clean"] = make_things_full if full else make_things
    monkeypatch.chdir(tmp_path)
    for name, make in makers.items():
        make(tmp_path / places[name], size=(8, 8))
    stages = plan(run, *words, "--device", "cpu")["stages"]
    problems = [need["problem"] for stage in stages for need in stage["data"] if need["problem"]]
    if full:
        (problem,) = problems
        assert "download FlyingThings3D_subset" in problem
        code, _, err = run(*words, "--device", "cpu")
        assert code == 2
        assert "FlyingThings3D_subset ('DispNet/FlowNet2.0 dataset subsets'" in err
        assert err.count("\n") == 1
        all_flows = ["--set", 'things:data=[{name="things-clean"}]']
        stages = plan(run, *words, *all_flows, "--device", "cpu")["stages"]
        problems = [need["problem"] for s in stages for need in s["data"] if need["problem"]]
    assert not problems


def test_a_wrong_stage_is_one_sentence(run, tmp_path):
    code, out, err = run("reproduce", "all", "--set", "thing:steps=7", "-o", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "unknown stage 'thing'; did you mean 'things'?" in err
    assert err.count("\n") == 1


def test_changes_are_for_all_stages_or_for_one(tmp_path):
    stages = plan_chain("chairs", tmp_path, ["seed=3", "chairs-1:steps=7"])
    assert [stage.config.seed for stage in stages] == [3, 3, 3]
    assert [stage.config.steps for stage in stages] == [50_000, 7, 50_000]
    with pytest.raises(InputError, match="unknown stage 'chair-1'"):
        plan_chain("chairs", tmp_path, ["chair-1:steps=7"])


@pytest.mark.parametrize("record", ["config.toml", "finished.json"])
def test_damaged_records_are_named(data, run, tmp_path, record):
    (stage, *_) = plan_chain("chairs", tmp_path, CHANGES[1::2])
    stage.folder.prepare(stage.config, resume=True)
    stage.finish({"step": 3, "best_step": 2, "best_epe": 1.5})
    file = stage.folder.path / record
    file.write_bytes(file.read_bytes()[:15])
    code, out, err = run("reproduce", "chairs", *data, *CHANGES, "--dry-run", "-o", tmp_path)
    assert (code, out) == (2, "")
    assert f"{file} is damaged" in err
    assert err.count("\n") == 1


def test_other_settings_need_another_folder(tmp_path):
    (stage, *_) = plan_chain("chairs", tmp_path, [])
    stage.folder.prepare(stage.config, resume=True)
    with pytest.raises(InputError, match="was started with another steps"):
        plan_chain("chairs", tmp_path, ["steps=7"])
