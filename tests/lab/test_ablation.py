"""Ablations: variants trained alike, scored alike, once; stopped and resumed."""

import json
import signal
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

import pytest
import torch
from children import SUPPORT, run_forked_child
from conftest import TINY_LEVEL
from fake_trees import make_chairs, make_kitti15, make_own_pairs, make_sintel, make_things
from signal_child import signal_after
from small_study import RECIPE

from dicl_flow import weights as store
from dicl_flow.config import MATCHERS
from dicl_flow.data import list_pairs, read_frames
from dicl_flow.errors import InputError
from dicl_flow.estimation.estimator import load
from dicl_flow.estimation.inputs import Feeding
from dicl_flow.evaluation import PUBLISHED_ABLATIONS, score_pair
from dicl_flow.evaluation.table import published_ablation
from dicl_flow.files import read_flow
from dicl_flow.lab import ablation, paper_tables
from dicl_flow.lab.ablation import keep_to, split_photos
from dicl_flow.lab.variants import STUDIES, paper_variants, recipe_variants
from dicl_flow.models import build
from dicl_flow.training import SceneSource, read_recipe
from dicl_flow.training import chain as pace
from dicl_flow.training.chain import TARGETS
from dicl_flow.weights import (
    Weights,
    encode_weights,
    halve,
    in_parts,
    load_model,
    read_weights,
)

pytestmark = pytest.mark.heavy


@pytest.fixture
def command(tmp_path, small_scenes, request, monkeypatch):
    """The arguments of a study that a test can afford, without the data."""
    if request.function is not test_a_study_end_to_end:  # one test draws the curves
        monkeypatch.setattr(paper_tables, "ablation_plot", lambda *_: b"")
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)
    output = ["-o", tmp_path / "out", "--device", "cpu"]
    return ["ablate", "projection", "--recipe", recipe, "--pairs", 8, "--scenes", 3, *output]


RENDERED = ["--data", "rendered=procedural"]


def results(folder):
    return {p.parent.name: json.loads(p.read_text()) for p in folder.glob("*/results.json")}


def test_a_training_shorter_than_its_log_is_finished_all_the_same(command, run, tmp_path):
    few = ["--pairs", 2]  # one step
    code, out, _ = run(*command, *RENDERED, "--set", "log_every=1000", *few, "--json")
    assert code == 0
    summary = json.loads(out)
    assert set(summary["variants"]) == {"DICL without DAP", "DICL"}
    assert {Path(path).suffix for path in summary["written"]} == {".md", ".json", ".svg", ".png"}
    found = results(tmp_path / "out")
    assert len(found) == 2
    assert all(result["trained_pairs"] == 2 for result in found.values())


def test_variants_differ_in_the_model_alone():
    base = read_recipe("ablation", [])
    for study in STUDIES:
        variants = recipe_variants(study, "ablation", [], [0, 1])
        assert len({variant.folder for variant in variants}) == len(variants)
        for size in ((436, 1024), (375, 1242), (384, 512), (100, 100)):  # fed as in training
            seen = {Feeding.of(variant.config.model).seen(size) for variant in variants}
            assert seen == {base.augment.crop}
        for variant in variants:
            for key in ("steps", "batch", "data", "augment", "render", "optimizer", "schedule"):
                assert getattr(variant.config, key) == getattr(base, key)
            assert any(variant.config.loss.matching) == ("matching loss" in variant.name)
    metrics = {v.name: v for v in recipe_variants("metrics", "ablation", [], [0])}
    assert {v.config.model.matcher or "dicl" for v in metrics.values()} == set(MATCHERS)
    assert not any(variant.config.model.projection for variant in metrics.values())
    projection = {v.name: v for v in recipe_variants("projection", "ablation", [], [0])}
    assert projection["DICL without DAP"].folder == metrics["DICL"].folder  # trained once
    assert projection["DICL"].folder != metrics["DICL"].folder


def test_a_recipe_that_starts_from_weights_is_refused():
    for name, change in (("chairs-1", "start="), ("finetune", "needs_weights=false")):
        with pytest.raises(InputError, match="start from trained weights"):
            recipe_variants("metrics", name, [], [0])
        assert recipe_variants("metrics", name, [change], [0])


def test_every_variant_has_its_row_in_the_paper():
    rows = [(row.study, row.variant) for row in PUBLISHED_ABLATIONS]
    tables = {study: STUDIES[study] for study in ("metrics", "projection", "hosts")}
    assert rows == [(study, name) for study, names in tables.items() for name in names]


def test_the_claims_have_the_rows_of_table_3_and_that_of_dap():
    rows = {row.variant: row.sintel_clean_epe for row in published_ablation("claims")}
    assert rows == {
        **{row.variant: row.sintel_clean_epe for row in published_ablation("metrics")},
        "DICL with DAP": 1.94,
    }
    assert [*rows, "DICL with matching loss"] == [*STUDIES["claims"]]
    with pytest.raises(InputError, match="variants differ in loss"):
        recipe_variants("claims", None, ["loss.matching=[]"], [0])
    assert recipe_variants("metrics", None, ["loss.matching=[1.0,1.0,1.0,0.0,0.0]"], [0])


def test_the_folder_name_knows_what_matters():
    def changed(*changes):
        return recipe_variants("projection", "ablation", list(changes), [0])[0].folder

    name = changed()
    assert changed("workers=9", "log_every=7", "name=x") == name
    assert changed("steps=7") != name
    assert changed("render.motion=0.5") != name


def test_a_study_end_to_end(command, run, tmp_path, monkeypatch):
    """Train, score later, never twice; the table needs no weights."""
    seen = []

    class Watched(SceneSource):
        def batches(self, size, start_step, processes):
            for batch in super().batches(size, start_step, processes):
                seen.append((self.config.model.projection, batch.image1.double().sum().item()))
                yield batch

    monkeypatch.setattr(ablation, "SceneSource", Watched)
    out = tmp_path / "out"
    code, printed, _ = run(*command, *RENDERED)
    assert code == 0
    assert "held-out" in printed
    orders = [[value for flag, value in seen if flag is wanted] for wanted in (False, True)]
    assert len(orders[0]) == 4
    assert len(set(orders[0])) == 4
    assert orders[0] == orders[1]  # the same scenes in the same order

    trained = results(out)
    assert len(trained) == 2
    for name, result in trained.items():
        assert list(result["curve"]) == ["2", "4", "6", "8"]
        assert result["scores"]["held-out"]["num_pairs"] == 3
        weights = read_weights(out / name / "weights.safetensors")
        half = {t.dtype for k, t in weights.tensors.items() if k.endswith("conv.weight")}
        assert half == {torch.float16}
        last, final = result["curve"]["8"], result["scores"]["held-out"]["metrics"]["epe"]
        assert abs(last - final) < 0.01 * last  # the same scenes, weights rounded to half
        assert not (out / name / "last.ckpt").exists()

    make_sintel(tmp_path / "sintel")
    sintel = ["--data", f"sintel-clean={tmp_path / 'sintel'}"]
    seen.clear()
    assert run(*command, *sintel)[0] == 0
    assert not seen
    pairs = [result["scores"]["sintel-clean"]["num_pairs"] for result in results(out).values()]
    assert len(set(pairs)) == 1
    for name in trained:
        (out / name / "weights.safetensors").unlink()
    code, printed, _ = run(*command, *sintel)
    assert code == 0
    text = (out / "projection.md").read_text()
    assert "| Sintel clean |" in text
    assert "1.94" in text  # the paper's
    assert f"Sintel clean {pairs[0]} of 1041" in text
    assert {path.suffix for path in out.glob("projection.*")} == {".md", ".json", ".svg", ".png"}

    make_sintel(tmp_path / "more", size=(40, 60))
    code, _, err = run(*command, "--data", f"sintel-final={tmp_path / 'more'}")
    assert code == 0
    assert "not scored on sintel-final: no weights" in err


def test_a_study_in_parts(command, run, tmp_path, monkeypatch):
    """Each part trains and scores what fits in its time; estimates of the first seed are kept."""
    plain, with_dap = (STUDIES["claims"][name] for name in ("DICL", "DICL with DAP"))
    claims = {"DICL": plain, "DICL with DAP": {**with_dap, "loss.matching": [1.0]}}
    monkeypatch.setitem(STUDIES, "claims", claims)
    command[1] = "claims"
    sets = {"sintel-clean": make_sintel, "pairs:pair1": make_own_pairs}
    data = [f"--data={name}={make(tmp_path / name[:5])}" for name, make in sets.items()]
    study = [*command, *RENDERED, *data, "--seeds", 2, "--pairs", 2, "--keep", "sintel-clean"]
    out, brief = tmp_path / "out", ["--minutes", 0.0001]
    for left in range(3, 0, -1):
        code, _, err = run(*study, *brief)
        assert code == 0
        assert len(results(out)) == 4 - left
        assert f"{left} variant{'s' * (left > 1)} left; the same command continues" in err
        for result in results(out).values():  # scored before the next one is begun
            assert set(result["scores"]) == {"held-out", *sets}
    for weights in out.glob("*/weights.safetensors"):  # as on a machine that is new
        weights.unlink()
    assert run(*study, *brief)[0] == 0

    found = results(out).values()
    assert {len(result["scores"]["held-out"]["pairs"]) for result in found} == {3}
    for result in found:
        has_dap = "matching = [1.0]" in result["config"]
        assert len(result["peaks"]["sintel-clean"]) == 1 + has_dap  # before and after
    pairs = list_pairs("sintel-clean", tmp_path / "sinte")
    folders = {folder.name for folder in (out / "flows").iterdir()}
    assert folders == {"dicl", "dicl-with-dap"}
    flows = [out / "flows" / "dicl" / "sintel-clean" / f"{pair.name}.png" for pair in pairs]
    document = json.loads((out / "claims.json").read_text())
    first = document["variants"]["DICL"][0]["scores"]["sintel-clean"]["pairs"]
    for pair, flow in zip(pairs, flows, strict=True):
        epe = score_pair(pair, read_flow(flow)).values["epe"]
        assert epe == pytest.approx(first[pair.name]["epe"], abs=0.02)  # steps of 1/64 px

    text = (out / "claims.md").read_text()
    for title in ("By set", "Against DICL", "d_peak"):
        assert f"### {title}\n" in text
    assert [*document["errors"]["DICL"]][-1] == "mean of the sets"
    assert len(document["errors"]["DICL"]["held-out"]) == 2
    assert set(document["differences"]["variants"]) == {"DICL with DAP"}
    code, _, err = run(*study, "--keep", "sintel-clan")
    assert code == 2
    assert "did you mean 'sintel-clean'" in err


def test_a_study_on_data_from_disk(command, run, tmp_path):
    make_chairs(tmp_path / "chairs")
    data = [f"--data={name}={tmp_path / 'chairs'}" for name in ("chairs", "chairs:val")]
    changes = ["--set", 'data=[{ name = "chairs" }]', "--set", "workers=0"]
    assert run(*command, *data, *changes, "--pairs", 2)[0] == 0
    for result in results(tmp_path / "out").values():
        assert set(result["scores"]) == {"held-out", "chairs:val"}


def test_seeds_are_averaged_and_their_spread_is_told(command, run, tmp_path):
    assert run(*command, *RENDERED, "--seeds", 2, "--pairs", 2)[0] == 0
    text = (tmp_path / "out" / "projection.md").read_text()
    assert "Us: 2 pairs each, 2 seeds" in text
    assert " ± " in text
    document = json.loads((tmp_path / "out" / "projection.json").read_text())
    assert [r["seed"] for r in document["variants"]["DICL"]] == [0, 1]

    # one variant may lack a seed
    rmtree(next((tmp_path / "out").glob("dicl-dicl-seed1-*")))
    make_sintel(tmp_path / "Sintel")
    data = ["--data", f"sintel-clean={tmp_path / 'Sintel'}"]
    assert run(*command, *data, "--seeds", 2, "--pairs", 2)[0] == 0
    assert "1 or 2 seeds" in (tmp_path / "out" / "projection.md").read_text()


def test_the_stages_of_the_paper():
    metrics = paper_variants("metrics", [], [0, 1])
    assert len(metrics) == 10
    for variant in metrics:
        names = [stage.name for stage in variant.stages]
        assert names == ["chairs-0", "chairs-1", "chairs-2", "things"]
        assert [stage.model.context for stage in variant.stages] == [False, True, True, True]
        assert not any(stage.model.projection for stage in variant.stages)
    assert metrics[0].pairs == 150_000 * 64 + 220_000 * 16
    without, with_dap = paper_variants("projection", [], [0])
    assert [stage.model.projection for stage in with_dap.stages] == [False, False, True, True]
    assert without.folder == metrics[4].folder  # trained once
    hosts = paper_variants("hosts", [], [0])
    for variant in hosts:
        assert [stage.start for stage in variant.stages] == ["", "chairs-1"]
        assert {stage.model.host for stage in variant.stages} <= {"pwcnet", "vcn"}
    rates = [{stage.optimizer.learning_rate for stage in variant.stages} for variant in hosts]
    assert rates == [{1e-4}, {5e-5}, {1e-3}, {1e-3}]
    given = paper_variants("hosts", ["optimizer.learning_rate=1e-3"], [0], ["PWC-Net"])
    assert [stage.optimizer.learning_rate for (v,) in [given] for stage in v.stages] == [1e-3] * 2
    with pytest.raises(InputError, match="unknown study of the paper 'figures'"):
        paper_variants("figures", [], [0])


PAPER = [
    *("steps=3", "batch=2", "workers=0", "save_every=2", "validate_every=2", "picture_every=0"),
    *(TINY_LEVEL, "augment.crop=[16,32]", "loss.matched=[0.8]"),
    *(f"{stage}:loss.refined=[1.0]" for stage in ("chairs-1", "chairs-2", "things")),
]


@pytest.fixture
def paper(tmp_path):
    """The words of a study in the paper's stages that a test can afford, and those of its data."""
    makers = {"chairs": make_chairs, "things-clean": make_things}
    makers |= {"sintel-clean": make_sintel, "kitti15": make_kitti15}
    data = [f"--data={n}={make(tmp_path / n, size=(20, 40))}" for n, make in makers.items()]
    changes = [word for change in PAPER for word in ("--set", change)]
    study = ["ablate", "metrics", "--protocol", "paper", "--variant", "cosine", "--device", "cpu"]
    return [*study, *changes, "-q", "-o", tmp_path / "out"], data


@pytest.mark.usefixtures("one_thread")
def test_the_paper_s_protocol_end_to_end(paper, run, tmp_path, monkeypatch):
    """Stage by stage on Chairs and Things; Chairs is scored before Things, the rest after it."""
    (command, data), out = paper, tmp_path / "out"
    code, _, err = run(*command, data[0], *data[2:])
    assert code == 2
    assert "things-clean:val: the recipe needs 'things-clean:val'" in err
    assert not out.exists()
    with monkeypatch.context() as patch:  # in the second stage
        signal_after("SIGINT", 3, "dicl_flow.training.run_folder:RunFolder.save", patch.setattr)
        assert run(*command, *data)[0] == 128 + signal.SIGINT
    assert run(*command, *data)[0] == 0
    (pair,) = list_pairs("chairs:val", tmp_path / "chairs", needs_truth=True)
    ((name, result),) = results(out).items()
    assert set(result["scores"]) == {"chairs:val", "sintel-clean", "kitti15"}
    assert result["trained_pairs"] == 24
    origin = read_weights(out / name / "weights.safetensors").about["started_from"]
    assert origin.startswith("chairs-2/best.safetensors")
    best = halve(read_weights(out / name / "things" / "best.safetensors")).tensors
    scored = read_weights(out / name / "weights.safetensors").tensors
    assert all(torch.equal(tensor, best[key]) for key, tensor in scored.items())
    chairs = load(out / name / "chairs-2" / "best.safetensors", "cpu", "fp32", "plain")
    epe = score_pair(pair, chairs(*read_frames(pair)).flow).values["epe"]
    assert result["scores"]["chairs:val"]["metrics"]["epe"] == pytest.approx(epe)
    assert not [*(out / name).glob("*/last.ckpt")]
    assert {path.suffix for path in out.glob("metrics.*")} == {".md", ".json"}


def test_stages_may_start_from_the_last_weights(paper, run, tmp_path):
    command, data = paper
    only = ["--set", "steps=2", "--start-from", "last"]
    assert run(*command, *data[:2], *only)[0] == 0
    ((name, _),) = results(tmp_path / "out").items()
    for stage, before in (("chairs-1", "chairs-0"), ("things", "chairs-2")):
        about = read_weights(tmp_path / "out" / name / stage / "best.safetensors").about
        assert about["started_from"].startswith(f"{before}/weights.safetensors")


def test_a_dry_run_of_the_paper_s_protocol(paper, run, tmp_path, monkeypatch):
    """One plan per variant and seed; a stage that differs in its seed alone is measured once."""
    command, data = paper
    measured = []
    take = lambda config, *_: measured.append(config.name) or pace.Pace(20.0, 0.0)  # noqa: E731
    monkeypatch.setattr(pace, "measure_pace", take)
    command.remove("-q")
    code, printed, _ = run(*command, *data, "--seeds", 2, "--dry-run")
    assert code == 0
    assert printed.count("things    3 steps of 2 pairs, 6 pairs in all, 60 s") == 2
    assert "all variants: 8 min, estimated" in printed
    assert measured == [*TARGETS["things"]]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "chair-1:steps=2"], "unknown stage 'chair-1'; did you mean 'chairs-1'?"),
        (["--variant", "DICLE"], "unknown variant 'DICLE'; did you mean 'DICL'?"),
        (["--start-from", "beast"], "unknown start_from 'beast'; did you mean 'best'?"),
        (["--variant", "mlp"], "unknown variant 'mlp'; did you mean 'MLP'?"),
        (["--set", "things:model.matcher=dot"], "leave out --set things:model.matcher=dot"),
        (["--pairs", 2], "leave out --pairs"),
        (["--protocol", "rendered", "--dry-run"], "--dry-run is for the stages of the paper"),
    ],
)
def test_wrong_words_of_the_paper_s_protocol(run, tmp_path, words, message):
    command = ["ablate", "metrics", "--protocol", "paper", "-o", tmp_path / "out", *words]
    code, out, err = run(*command)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_variants_that_share_a_frozen_feature_net(command, run, tmp_path, monkeypatch):
    """The small files of the figures: they hold what was trained, and name what they complete."""
    recipe = read_recipe(str(tmp_path / "tiny.toml"), [])
    torch.manual_seed(5)
    model = build(replace(recipe.model, matcher="dicl"))
    whole = halve(Weights(model.config, model.state_dict()))
    packaged = tmp_path / "packaged"
    packaged.mkdir()
    base = packaged / "rendered.safetensors"
    base.write_bytes(encode_weights(whole))
    monkeypatch.setattr(store, "_PACKAGED", packaged)
    monkeypatch.setitem(store.PACKAGED_SHA256, "rendered", sha256(base.read_bytes()).hexdigest())
    figures = {name: STUDIES["figures"][name] for name in ("dot product", "DICL with DAP")}
    monkeypatch.setitem(STUDIES, "figures", figures)
    command[1] = "figures"
    command += [*RENDERED, "--pairs", 2, "--set", "needs_weights=true"]
    command += ["--set", 'optimizer.frozen=["trunk", "context"]']
    code, printed, _ = run(*command, "--json")
    assert code == 0
    written = [Path(path) for path in json.loads(printed)["written"]]
    small = [path for path in written if path.suffix == ".safetensors"]
    assert [path.stem for path in small] == ["dot-product", "dicl-with-dap"]
    for path in small:
        assert path.stat().st_size < 0.5 * base.stat().st_size
        found = read_weights(path)
        load_model(found)
        for key, tensor in found.tensors.items():
            if in_parts(key, ["trunk", "context"]):
                assert torch.equal(tensor, whole.tensors[key])
    dicl = read_weights(small[1]).tensors
    last = "features.outputs.8.conv.weight"
    for key in (last, "levels.8.matcher.net.0.conv.weight", "levels.8.projection.weight"):
        assert not torch.equal(dicl[key], whole.tensors[key])
    monkeypatch.setitem(store.PACKAGED_SHA256, "rendered", "0" * 64)
    with pytest.raises(InputError, match="not those of this version"):
        read_weights(small[0])


FIGURES = Path(__file__).parents[2] / "docs/ablations/figures"


@pytest.mark.skipif(not FIGURES.is_dir(), reason="without docs/")
def test_the_files_of_the_figures_complete_the_packaged_weights():
    """New packaged weights need new files: `dicl-flow ablate figures`."""
    files = {path.stem: path for path in FIGURES.glob("*.safetensors")}
    assert set(files) == {name.lower().replace(" ", "-") for name in STUDIES["figures"]}
    for name, path in files.items():
        found = read_weights(path)  # refused if its base is not the packaged file
        assert found.config.projection == (name == "dicl-with-dap")
    load_model(found)


FIRST_CHECKPOINT = (1, "dicl_flow.training.run_folder:RunFolder.save")


@pytest.fixture
def stopped_study(command, run, tmp_path):
    """The arguments of a study that is to be stopped; then it ends as an undisturbed one does."""
    study = [*command, *RENDERED, "--quiet"]
    assert run(*study)[0] == 0
    undisturbed = results(tmp_path / "out")
    table = (tmp_path / "out" / "projection.md").read_text()
    out = study[study.index("-o") + 1] = tmp_path / "stopped"
    yield study
    (checkpoint,) = out.glob("*/last.ckpt")
    assert 0 < torch.load(checkpoint, weights_only=True)["step"] < 4
    assert run(*study)[0] == 0
    assert results(out).keys() == undisturbed.keys()
    for name, result in results(out).items():
        for key in ("curve", "scores"):
            assert undisturbed[name][key] == result[key]
    assert (out / "projection.md").read_text() == table


def test_a_stopped_study_is_resumed(stopped_study, run, monkeypatch):
    with monkeypatch.context() as patch:
        signal_after("SIGINT", *FIRST_CHECKPOINT, patch.setattr)
        assert run(*stopped_study)[0] == 128 + signal.SIGINT


@pytest.mark.slow
def test_a_killed_study_is_resumed(stopped_study):
    script = SUPPORT / "study_child.py"
    child = run_forked_child(script, "SIGKILL", *FIRST_CHECKPOINT, *stopped_study)
    assert child.returncode == -signal.SIGKILL, child.stderr


def test_wrong_inputs(command, run, tmp_path):
    code, _, err = run(*command)
    assert code == 2
    assert "holds no finished variant" in err
    assert not (tmp_path / "out").exists()
    code, _, err = run(*command, *RENDERED, "--set", "backend=fused")
    assert code == 2
    assert "--set backend=plain" in err
    command[1] = "metric"
    code, _, err = run(*command, *RENDERED)
    assert code == 2
    assert "did you mean 'metrics'" in err


def test_other_scenes_are_refused(command, run, tmp_path):
    (tmp_path / "out").mkdir()
    keep_to(tmp_path / "out" / "data.json", split_photos(Path("procedural"))[0], 4)
    code, _, err = run(*command, *RENDERED)
    assert code == 2
    assert "another number of held-out scenes" in err
    assert not results(tmp_path / "out")


def test_photographs_are_held_out_by_name(tmp_path):
    for number in range(60):
        (tmp_path / f"photo{number}.jpg").touch()
    photos, apart = split_photos(tmp_path)
    assert len(photos) + len(apart) == 60
    assert 1 <= len(apart) <= 15
    (tmp_path / "another.jpg").touch()
    again = split_photos(tmp_path)[1]
    assert set(apart) <= set(again)  # a photograph stays on its side
    packed = {name: tmp_path / "packed" / name / "photo.jpg" for name in ("train", "held-out")}
    for photo in packed.values():
        photo.parent.mkdir(parents=True)
        photo.touch()
    assert split_photos(tmp_path / "packed") == ([packed["train"]], [packed["held-out"]])
    rmtree(tmp_path / "packed")
    for photo in apart:
        photo.unlink()
    (tmp_path / "another.jpg").unlink()
    with pytest.raises(InputError, match="too few"):
        split_photos(tmp_path)
