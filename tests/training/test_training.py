"""Schedules, optimizer and runs: a run learns, and ends bit-identical if killed and resumed."""

import json
import os
import signal
import subprocess
import tomllib
from contextlib import suppress
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
import torch
from children import SUPPORT, run_child, run_forked_child, started
from conftest import SMALL, TINY, needs_bf16
from fake_trees import make_chairs, make_kitti15, make_own_pairs, make_sintel, make_things
from small_study import use_small_scenes
from small_training import CONFIG, CPU, KILLED, QUICK, RandomSource, small_changes

from dicl_flow.cli import main
from dicl_flow.config import (
    AugmentConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    structure,
)
from dicl_flow.data import FlowBatch
from dicl_flow.errors import InputError, StopSignal
from dicl_flow.models import build
from dicl_flow.training import (
    DataSource,
    FixedSource,
    Limits,
    Processes,
    RunFolder,
    Trainer,
    loop,
    open_source,
    read_recipe,
    recipe_names,
    train,
)
from dicl_flow.training.optimizer import (
    RecordedStep,
    WeightAverage,
    build_optimizer,
    learning_rate,
)
from dicl_flow.training.run_folder import load_checkpoint
from dicl_flow.weights import Weights, encode_weights, in_parts, read_weights

CHILD = SUPPORT / "training_child.py"


def state_of(folder):
    return load_checkpoint(RunFolder(folder).checkpoint)


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


# --- schedule, optimizer, average --------------------------------------------------------------


def rates(**schedule):
    config = replace(CONFIG, steps=100, schedule=ScheduleConfig(**schedule))
    return [learning_rate(config, step, step / 100) / 1e-3 for step in range(100)]


def test_schedules():
    assert set(rates(kind="constant")) == {1}
    steps = rates(kind="step", milestones=(30, 50), factor=0.5)
    assert (steps[29], steps[30], steps[49], steps[50]) == (1, 0.5, 0.5, 0.25)
    cosine = rates(kind="cosine", final=0.1)
    assert cosine[0] == 1
    assert cosine[50] == pytest.approx(0.55)
    assert min(cosine) > 0.1
    cycle = rates(kind="one-cycle", peak=0.2)
    assert np.argmax(cycle) == 20
    assert cycle[10] == pytest.approx(0.5)
    assert cycle[99] < 0.01
    assert rates(kind="constant", warmup=10)[4] == 0.5


def test_decay_spares_norms_biases_and_the_projection():
    model = build(SMALL)
    optimizer = build_optimizer(model, OptimizerConfig("adamw", 1e-3, weight_decay=0.1))
    decayed = {id(p) for p in optimizer.param_groups[0]["params"]}
    names = [name for name, p in model.named_parameters() if id(p) in decayed]
    assert all(name.endswith("weight") and ".bn." not in name for name in names)
    assert not any("projection" in name for name in names)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(
        list(model.parameters())
    )


def test_a_recorded_step_starts_without_recordings(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "Stream", lambda priority: priority)
    step = RecordedStep(build(SMALL), None, None, 1.0)
    assert (step._recordings, step._pool, step._stream) == ({}, (0, 0), -1)
    assert step._rate.ndim == step._follow.ndim == 0


def test_average_moves_towards_the_model():
    model = torch.nn.BatchNorm2d(1)
    average = WeightAverage(model, 0.9)
    with torch.no_grad():
        model.weight.add_(1)
        model.running_mean.add_(5)
        model.num_batches_tracked.add_(3)
    average.follow(model, average.rate(step=10_000))
    torch.testing.assert_close(average.model.weight.item(), 1.1)
    state = average.state_dict(model)
    torch.testing.assert_close(state["running_mean"].item(), 0.5)  # statistics as well
    assert state["num_batches_tracked"] == model.num_batches_tracked  # a count is no average


# --- every recipe, run --------------------------------------------------------------------------


RECIPE_DATA = {
    **{f"chairs-{phase}": ["chairs"] for phase in range(3)},
    "things": ["things-clean"],
    "sintel": ["sintel-clean", "sintel-final"],
    "kitti": ["kitti15"],
    "finetune": ["pairs"],
    **{name: ["rendered"] for name in ("rendered-0", "rendered", "rendered-large")},
    **{name: ["rendered"] for name in ("every-level", "solid", "ablation", "figures")},
}
"""What each recipe trains on, those first whose weights others start from."""


WHOLE = [n for n in recipe_names() if n != "adapt" and not read_recipe(n, []).radii]
"""The recipes that train all of a network: the others have tests of their own."""


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """Every recipe, two steps on fake data, each from the one it starts from."""
    root = tmp_path_factory.mktemp("stages")
    makers = {
        "chairs": make_chairs,
        "things-clean": make_things,
        "sintel-clean": make_sintel,
        "sintel-final": make_sintel,
        "kitti15": make_kitti15,
        "pairs": make_own_pairs,
    }
    places = {"rendered": "procedural", **{name: root / name for name in makers}}
    for name, make in makers.items():
        make(root / name, size=(60, 70))
    for name, sets in RECIPE_DATA.items():
        arguments = ["train", name, "-o", str(root / "runs" / name), "--quiet"]
        arguments += [word for key in sets for word in ("--data", f"{key}={places[key]}")]
        changes = ["steps=2", "batch=2", "workers=0", "log_every=1", "render.num_shapes=8"]
        for change in (*changes, *small_changes(name)):
            arguments += ["--set", change]
        if name in ("finetune", "figures"):
            arguments += ["--init", str(root / "runs" / STARTS[name] / "weights.safetensors")]
        with pytest.MonkeyPatch.context() as patch:
            use_small_scenes(patch.setattr)
            with pytest.raises(SystemExit) as exit_info:
                main(arguments)
        assert not exit_info.value.code, name
    return root / "runs"


STARTS = {
    "chairs-1": "chairs-0",
    "chairs-2": "chairs-1",
    "things": "chairs-2",
    "sintel": "things",
    "kitti": "things",
    "finetune": "things",
    "rendered": "rendered-0",
    "rendered-large": "rendered",
    "every-level": "rendered",
    "solid": "rendered",
    "figures": "rendered",
}


@pytest.mark.heavy
@pytest.mark.xdist_group("stages")
@pytest.mark.parametrize("name", WHOLE)
def test_every_recipe_trains_every_parameter_from_where_it_starts(stages, name):
    """Two small steps from the stage before, or from the seed where there is none."""
    config = structure(TrainConfig, tomllib.loads((stages / name / "config.toml").read_text()))
    initial = stages / STARTS[name] / "weights.safetensors" if name in STARTS else None
    before = dict(Trainer(config, CPU, initial).model.named_parameters())
    trained = state_of(stages / name)["model"]
    for key, parameter in before.items():
        assert torch.equal(trained[key], parameter) is in_parts(key, config.optimizer.frozen or ())
        assert (trained[key] - parameter).abs().max() < 0.02, key
    weights = read_weights(stages / name / "weights.safetensors")
    assert weights.about["steps"] == "2"
    assert weights.config == read_recipe(name, small_changes(name)).model
    lines = (stages / name / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


@pytest.mark.heavy
@pytest.mark.xdist_group("stages")
def test_a_run_folder_holds_its_config(stages):
    config = structure(TrainConfig, tomllib.loads((stages / "kitti" / "config.toml").read_text()))
    assert (config.name, config.steps, config.augment.crop) == ("kitti", 2, (16, 32))


def test_a_missing_stage_is_named(tmp_path, capsys):
    make_chairs(tmp_path / "chairs")
    arguments = ["train", "chairs-1", "--data", f"chairs={tmp_path / 'chairs'}"]
    with pytest.raises(SystemExit) as exit_info:
        main([*arguments, "-o", str(tmp_path / "runs" / "chairs-1")])
    assert exit_info.value.code == 2
    assert "starts from 'chairs-0', but there is no" in capsys.readouterr().err


def test_fine_tuned_weights_are_fed_like_those_they_started_from(tmp_path):
    multiple = 2 * SMALL.pad_multiple
    fed = replace(SMALL, padding="resize", multiple=multiple, frame_size=(multiple, multiple))
    path = tmp_path / "start.safetensors"
    path.write_bytes(encode_weights(Weights(fed, build(fed).state_dict())))
    trainer = Trainer(CONFIG, CPU, path)
    assert trainer.weights().config == fed
    resumed = Trainer(CONFIG, CPU)
    assert resumed.weights().config == SMALL
    resumed.restore(trainer.checkpoint())
    assert resumed.weights().config == fed


def test_start_refuses_weights_of_another_network(tmp_path):
    other = ModelConfig(matcher="dot", levels=SMALL.levels)
    path = tmp_path / "dot.safetensors"
    path.write_bytes(encode_weights(Weights(other, build(other).state_dict())))
    with pytest.raises(InputError, match=r"cannot start from .*dot\.safetensors"):
        Trainer(CONFIG, CPU, path)


# --- the loop ----------------------------------------------------------------------------------


@pytest.mark.heavy
def test_a_short_run_learns_and_leaves_its_files(tmp_path):
    outcome = train(QUICK, RandomSource(), RunFolder(tmp_path), CPU, quiet=True)
    assert outcome.finished
    assert outcome.step == 6
    assert {"last.ckpt", "weights.safetensors", "config.toml", "log.jsonl", "tensorboard"} == {
        entry.name for entry in tmp_path.iterdir()
    }
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert {"loss", "epe", "learning_rate", "pairs_per_second", "skipped"} <= lines[0].keys()
    averaged = read_weights(tmp_path / "weights.safetensors").tensors
    assert_same(dict(averaged), dict(state_of(tmp_path)["average"]))


@pytest.mark.heavy
def test_accumulation_is_one_batch():
    """Without batch statistics, two halves are the whole."""
    gradients = []
    for parts in (1, 2):
        optimizer = OptimizerConfig(accumulate=parts, freeze_norm=True)
        trainer = Trainer(replace(CONFIG, batch=4, optimizer=optimizer), CPU)
        batches = RandomSource().batches(4, 0, CPU)
        whole = next(batches)
        halves = [FlowBatch(*(t[i : i + 2] for t in vars(whole).values())) for i in (0, 2)]
        trainer.train_step(iter([whole] if parts == 1 else halves), 0.0)
        gradients.append([parameter.grad for parameter in trainer.model.parameters()])
    # a gradient that should be 0, as that of a bias before a softmax, is rounding
    largest = max(gradient.abs().max().item() for gradient in gradients[0])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 * largest, rtol=1e-3)


def test_frozen_norms_keep_their_statistics():
    trainer = Trainer(replace(CONFIG, optimizer=OptimizerConfig(freeze_norm=True)), CPU)
    before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    trainer.train_step(RandomSource().batches(2, 0, CPU), 0.0)
    after = trainer.model.state_dict()
    assert all(torch.equal(after[k], before[k]) for k in before if "running" in k)
    assert not torch.equal(
        after["features.stem.0.conv.weight"], before["features.stem.0.conv.weight"]
    )


@needs_bf16
def test_bfloat16_keeps_loss_in_float32():
    trainer = Trainer(replace(CONFIG, optimizer=OptimizerConfig(precision="bf16")), CPU)
    values = trainer.train_step(RandomSource().batches(2, 0, CPU), 0.0)
    assert np.isfinite(values["loss"])
    assert all(level.refined.dtype == torch.float32 for level in trainer.levels)


@pytest.mark.heavy
def test_a_bad_batch_is_skipped_counted_and_leaves_no_trace(tmp_path):
    outcome = train(QUICK, RandomSource(poison=[1, 3]), RunFolder(tmp_path), CPU, quiet=True)
    assert outcome.finished
    state = state_of(tmp_path)
    assert (state["skipped"], state["skipped_in_a_row"]) == (2, 0)
    assert all(t.isfinite().all() for t in state["model"].values())
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["skipped"] == 2


@pytest.mark.heavy
def test_ten_bad_batches_in_a_row_stop_the_run_with_the_batch_saved(tmp_path):
    config = replace(QUICK, steps=50, picture_every=0)
    with pytest.raises(InputError, match="not finite in 10 consecutive steps, the last of them 13"):
        train(config, RandomSource(poison=range(3, 50)), RunFolder(tmp_path), CPU, quiet=True)
    batch = torch.load(tmp_path / "bad_batch.pt", weights_only=True)
    assert batch["image1"].isnan().any()


@pytest.mark.heavy
def test_a_run_folder_is_not_overwritten(tmp_path):
    train(QUICK, RandomSource(), RunFolder(tmp_path), CPU, quiet=True)
    with pytest.raises(InputError, match="already holds a run"):
        train(QUICK, RandomSource(), RunFolder(tmp_path), CPU, quiet=True)
    changed = replace(QUICK, batch=4, workers=3)
    with pytest.raises(InputError, match="another batch; resume it with the same"):
        train(changed, RandomSource(), RunFolder(tmp_path), CPU, resume=True, quiet=True)


def test_a_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "last.ckpt").write_bytes(b"broken")
    with pytest.raises(InputError, match=r"last\.ckpt is not a checkpoint"):
        train(CONFIG, RandomSource(), RunFolder(tmp_path), CPU, resume=True, quiet=True)


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    train(replace(QUICK, steps=2), RandomSource(), folder, CPU, quiet=True)
    before = folder.checkpoint.read_bytes(), folder.weights.read_bytes()

    def full(handle, mode):
        os.close(handle)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(OSError, match="No space left on device"):
        folder.save({"step": 3}, b"weights")
    assert (folder.checkpoint.read_bytes(), folder.weights.read_bytes()) == before
    assert not list(tmp_path.glob(".*"))


@pytest.mark.heavy
def test_minutes_end_the_run_and_plan_the_schedule(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "monotonic", count().__next__)  # a second for each step
    config = replace(QUICK, steps=10**6, schedule=ScheduleConfig("cosine"), log_every=1)
    limits = Limits(minutes=5 / 60)
    outcome = train(config, RandomSource(), RunFolder(tmp_path), CPU, limits=limits, quiet=True)
    assert (outcome.step, outcome.finished) == (4, True)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    planned = [learning_rate(config, step, (step + 1) / 5) for step in range(4)]
    assert [line["learning_rate"] for line in lines] == pytest.approx(planned)


@pytest.mark.heavy
def test_overfitting_two_samples_stops_when_they_fit(tmp_path):
    make_chairs(tmp_path / "chairs", size=(40, 50))
    config = replace(QUICK, model=TINY, steps=400, data=(DataConfig("chairs:all"),))
    config = replace(config, save_every=10**6, optimizer=OptimizerConfig(learning_rate=3e-3))
    source = FixedSource(config, {"chairs": tmp_path / "chairs"}, 2)
    folder = RunFolder(tmp_path / "run")
    outcome = train(config, source, folder, CPU, limits=Limits(epe=1.0), quiet=True)
    assert outcome.epe < 1.0
    assert outcome.step < 400


def test_overfit_needs_as_many_pairs_and_batch_norm_two_pixels(tmp_path):
    make_chairs(tmp_path, size=(40, 50), num_pairs=4)
    with pytest.raises(InputError, match="`num_samples=99`: the data has"):
        FixedSource(CONFIG, {"chairs": tmp_path}, 99)
    smallest = (CONFIG.model.pad_multiple,) * 2
    config = replace(CONFIG, augment=AugmentConfig.crop_only(smallest))
    with pytest.raises(InputError, match="use at least two pairs at a time"):
        FixedSource(config, {"chairs": tmp_path}, 1)


@pytest.mark.heavy
@pytest.mark.usefixtures("small_scenes")
def test_rendered_batches_depend_on_the_step_alone():
    config = replace(QUICK, data=(DataConfig("rendered"),))
    source = open_source(config, {"rendered": Path("procedural")})
    first, second, third = islice(source.batches(2, 0, CPU), 3)
    again = next(source.batches(2, 2, CPU))
    assert_same(vars(third), vars(again))
    assert not torch.equal(first.image1, second.image1)
    assert first.image1.shape == (2, 3, 16, 32)


def test_rendered_scenes_cannot_be_mixed_and_need_photographs(tmp_path):
    mixed = replace(CONFIG, data=(DataConfig("chairs"), DataConfig("rendered")))
    with pytest.raises(InputError, match="cannot be mixed"):
        open_source(mixed, {})
    config = replace(CONFIG, data=(DataConfig("rendered"),))
    with pytest.raises(InputError, match=r"`roots=\{'rendered': PATH\}`"):
        open_source(config, {})
    with pytest.raises(InputError, match="no photographs"):
        open_source(config, {"rendered": tmp_path})


def test_data_must_be_located():
    with pytest.raises(InputError, match=r"give its folder with `roots=\{'chairs': PATH\}`"):
        DataSource(CONFIG, {})


@pytest.mark.heavy
def test_a_corrupt_image_in_an_epoch_is_named(tmp_path):
    make_chairs(tmp_path / "chairs", size=(40, 50))
    victim = sorted((tmp_path / "chairs").rglob("*_img1.ppm"))[0]
    victim.write_bytes(b"P6 nonsense")
    config = replace(QUICK, data=(DataConfig("chairs:all"),), workers=1)
    source = DataSource(config, {"chairs": tmp_path / "chairs"})
    with pytest.raises(InputError, match=victim.name):
        train(config, source, RunFolder(tmp_path / "run"), CPU, quiet=True)


# --- killed and resumed ------------------------------------------------------------------------


@pytest.fixture
def undisturbed(one_thread, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    train(KILLED, RandomSource(), RunFolder(folder), CPU, quiet=True)
    return state_of(folder)


def moments(count, seed):
    """Random moments to die at, in turn: inside a write, at a rename, between two steps."""
    generator = np.random.default_rng(seed)
    for number in range(count):
        call = int(generator.integers(2, 5))
        if number % 3 == 0:
            yield "in-write", call, int(generator.integers(1, 10**5))
        elif number % 3 == 1:
            yield "at-rename", call
        else:
            yield "at-batch", call - 2


@pytest.mark.heavy
@pytest.mark.parametrize("count", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_and_resumed_the_run_ends_bit_identical(tmp_path, undisturbed, count):
    runs = [run_forked_child(CHILD, tmp_path, *moment) for moment in moments(count, seed=3)]
    codes = [run.returncode for run in runs]
    assert set(codes) <= {0, -signal.SIGKILL}, [run.stderr for run in runs]
    assert codes.count(-signal.SIGKILL) >= count / 2
    train(KILLED, RandomSource(), RunFolder(tmp_path), CPU, resume=True, quiet=True)
    assert_same(state_of(tmp_path), undisturbed)
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 9))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.heavy
def test_sigterm_saves_and_exits(tmp_path, undisturbed):
    """Stopped politely after two steps, the run goes on to the same end."""

    class Stopping(RandomSource):
        def batches(self, size, start_step, processes):
            for number, batch in enumerate(super().batches(size, start_step, processes)):
                if number == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield batch

    config = replace(KILLED, save_every=100)
    outcome = train(config, Stopping(), RunFolder(tmp_path), CPU, quiet=True)
    assert (outcome.finished, outcome.signal, outcome.step) == (False, signal.SIGTERM, 2)
    train(KILLED, RandomSource(), RunFolder(tmp_path), CPU, resume=True, quiet=True)
    assert_same(state_of(tmp_path), undisturbed)


@pytest.mark.heavy
@pytest.mark.usefixtures("small_scenes")
def test_rendered_frames_of_several_sizes_take_turns():
    config = read_recipe(
        "rendered-0", ["batch=4", "augment.crop=[128,256]", "render.sizes=[[128,256],[256,256]]"]
    )
    source = open_source(config, {"rendered": Path("procedural")})
    batches = source.batches(4, 1, Processes(torch.device("cpu")))
    shapes = [tuple(next(batches).flow.shape) for _ in range(3)]
    assert shapes == [(2, 2, 256, 256), (4, 2, 128, 256), (2, 2, 256, 256)]


STUCK = """
import ctypes
from dicl_flow.errors import StopSignal

with StopSignal():
    mutex = ctypes.create_string_buffer(256)
    lock = ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    print("stuck", flush=True)
    lock(mutex)  # for ever, and never back in Python
"""


@pytest.mark.heavy
def test_a_second_signal_ends_the_process_inside_native_code():
    with started("-c", STUCK) as process:
        assert process.stdout.readline() == "stuck\n"
        for _ in range(1000):
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.1)
                break
        # by the thread, or by the system where the first signal came before the second lock
        assert process.returncode in (128 + signal.SIGINT, -signal.SIGINT)


def test_after_the_first_signal_the_next_has_its_default_effect():
    code = """if True:
        import os, signal
        from dicl_flow.errors import StopSignal

        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            print(stop.received == signal.SIGTERM, flush=True)
            os.kill(os.getpid(), signal.SIGINT)
            print("still here", flush=True)
    """
    found = run_child("-c", code)
    assert (found.stdout, found.returncode) == ("True\n", -signal.SIGINT)


def test_the_handlers_of_before_come_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.received == signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
