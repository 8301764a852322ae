"""`train` as users and schedulers treat it: nothing begins, ends or is hidden by mistake."""

import hashlib
import io
import json
import os
import signal
import warnings
from contextlib import redirect_stderr
from dataclasses import replace
from threading import Condition

import pytest
from children import SUPPORT, run_child, run_forked_child
from conftest import SMALL
from fake_trees import make_chairs, make_own_pairs
from small_training import CONFIG, CPU, KILLED, RandomSource, small_changes
from torch.utils.data import DataLoader

from dicl_flow.accelerated import settings
from dicl_flow.data import loader
from dicl_flow.errors import SlowWarning, StopSignal, hide_library_warnings
from dicl_flow.models import build
from dicl_flow.training import (
    DataSource,
    Limits,
    RunFolder,
    Trainer,
    read_recipe,
    recipe_names,
    run_folder,
    train,
)
from dicl_flow.training.recipe import origin
from dicl_flow.training.run_folder import load_checkpoint
from dicl_flow.weights import PACKAGED_SHA256, Weights, encode_weights, read_weights, resolve

STEP = "dicl_flow.training.trainer:Trainer.train_step"


def words(recipe, data, out, *changes):
    """The words of a small training of one step."""
    small = ["steps=1", "batch=2", "workers=0", *small_changes(recipe), *changes]
    settings = [word for change in small for word in ("--set", change)]
    return ["train", recipe, "--data", data, "-o", out, "--quiet", *settings]


@pytest.fixture
def own_pairs(tmp_path):
    make_own_pairs(tmp_path / "pairs", size=(60, 70))
    return f"pairs={tmp_path / 'pairs'}"


def started_from(folder):
    return read_weights(RunFolder(folder).weights).about["started_from"]


# --- what a run starts from --------------------------------------------------------------------


def test_finetune_asks_for_weights(tmp_path, own_pairs, run):
    code, _, err = run(*words("finetune", own_pairs, tmp_path / "run"))
    assert code == 2
    assert "'finetune' is meant to start from trained weights: give --init WEIGHTS" in err
    assert not (tmp_path / "run").exists()


def test_every_recipe_of_trained_weights_says_so():
    fresh = {"chairs-0", "rendered-0", "ablation"}
    recipes = {name: read_recipe(name, []) for name in recipe_names()}
    assert {n for n, r in recipes.items() if not (r.start or r.needs_weights)} == fresh


@pytest.mark.heavy
def test_random_weights_are_asked_for_by_name(tmp_path, own_pairs, run):
    out = tmp_path / "run"
    code, printed, err = run(*words("finetune", own_pairs, out), "--init", "random", "--json")
    assert (code, err) == (0, "")
    summary = json.loads(printed)
    assert (summary["finished"], summary["step"]) == (True, 1)
    assert summary["written"] == [str(out / "weights.safetensors"), str(out / "last.ckpt")]
    assert started_from(out) == "random"


@pytest.mark.heavy
def test_random_weights_replace_a_stage_that_was_not_trained(tmp_path, run):
    make_chairs(tmp_path / "chairs", size=(60, 70))
    data, out = f"chairs={tmp_path / 'chairs'}", tmp_path / "runs" / "chairs-1"
    assert run(*words("chairs-1", data, out), "--init", "random")[0] == 0
    assert started_from(out) == "random"


@pytest.mark.heavy
@pytest.mark.parametrize("options", [(), ("--overfit", "2")])
def test_weights_record_what_they_were_started_from(
    tmp_path, own_pairs, tiny_weights, run, options
):
    out = tmp_path / "run"
    code, _, err = run(*words("finetune", own_pairs, out), "--init", tiny_weights, *options)
    assert code == 0, err
    digest = hashlib.sha256(tiny_weights.read_bytes()).hexdigest()
    expected = f"{tiny_weights.parent.name}/{tiny_weights.name}, sha256 {digest[:12]}"
    assert started_from(out) == expected


def test_packaged_weights_are_recorded_by_name():
    assert origin(resolve("rendered")) == f"rendered, sha256 {PACKAGED_SHA256['rendered'][:12]}"


def test_a_resumed_run_still_knows_what_it_started_from(tmp_path):
    path = tmp_path / "start.safetensors"
    path.write_bytes(encode_weights(Weights(SMALL, build(SMALL).state_dict())))
    begun, resumed = Trainer(CONFIG, CPU, path), Trainer(CONFIG, CPU)
    assert resumed.weights().about["started_from"] == "random"
    resumed.restore(begun.checkpoint())
    assert resumed.weights().about["started_from"] == origin(path)


def test_resuming_where_no_run_is_begins_none(tmp_path, own_pairs, tiny_weights, run):
    out = tmp_path / "typo"
    code, _, err = run(*words("finetune", own_pairs, out), "--init", tiny_weights, "--resume")
    assert code == 2
    assert f"there is no run to resume in {out}" in err
    assert not out.exists()


@pytest.mark.heavy
def test_a_run_is_resumed_by_the_same_words(tmp_path, own_pairs, tiny_weights, run):
    out = tmp_path / "run"
    command = [*words("finetune", own_pairs, out), "--init", tiny_weights]
    assert run(*command)[0] == 0
    assert run(*command, "--resume")[0] == 0
    assert load_checkpoint(RunFolder(out).checkpoint)["step"] == 1


# --- ended by a scheduler ----------------------------------------------------------------------


@pytest.fixture
def chairs(tmp_path):
    make_chairs(tmp_path / "chairs", size=(60, 70))
    return f"chairs={tmp_path / 'chairs'}"


@pytest.mark.heavy
def test_a_signal_to_the_whole_group_saves_and_ends(tmp_path, chairs):
    out = tmp_path / "run"
    command = words("chairs-0", chairs, out, "steps=50", "workers=2")
    child = run_forked_child(SUPPORT / "signal_child.py", "group-SIGTERM", 1, STEP, *command)
    assert child.returncode == 128 + signal.SIGTERM, child.stderr
    assert "Traceback" not in child.stderr
    assert load_checkpoint(RunFolder(out).checkpoint)["step"] == 1


@pytest.mark.heavy
def test_a_killed_run_leaves_no_process(tmp_path, chairs):
    """The pipes of a child that is waited for are those of its loader processes, too."""
    command = words("chairs-0", chairs, tmp_path / "run", "steps=50", "workers=2")
    child = run_child(SUPPORT / "signal_child.py", "SIGKILL", 1, STEP, *command)
    assert child.returncode == -signal.SIGKILL, child.stderr


def test_one_wish_that_arrives_twice_is_one():
    """`timeout` signals its child, then the group that the child is in."""
    code = """if True:
        import os, signal
        from dicl_flow.errors import StopSignal

        with StopSignal() as stop:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
        print(stop.received == signal.SIGTERM)
    """
    found = run_child("-c", code)
    assert (found.stdout, found.returncode) == ("True\n", 0)


def test_a_signal_while_workers_start_is_not_lost(monkeypatch, tmp_path, chairs):
    def send_and_start(loader):
        os.kill(os.getpid(), signal.SIGTERM)
        return iter([])

    monkeypatch.setattr(DataLoader, "__iter__", send_and_start)
    source = DataSource(replace(CONFIG, workers=1), {"chairs": tmp_path / "chairs"})
    with StopSignal() as stop:
        assert list(source.batches(2, 0, CPU)) == []
    assert stop.received == signal.SIGTERM


# --- what a run tells --------------------------------------------------------------------------


class Errors(io.StringIO):
    """What is printed to stderr; `said` waits for a text, from whatever thread it comes."""

    def __init__(self):
        super().__init__()
        self._more = Condition()

    def write(self, text):
        with self._more:
            self._more.notify_all()
            return super().write(text)

    def said(self, text):
        with self._more:
            return self._more.wait_for(lambda: text in " ".join(self.getvalue().split()), 60)


class Waiting(RandomSource):
    """Batches that come once something was said: a step that lasts."""

    def __init__(self, errors, text):
        super().__init__()
        self.errors, self.text, self.found = errors, text, False

    def batches(self, size, start_step, processes):
        self.found = self.errors.said(self.text)
        yield from super().batches(size, start_step, processes)


@pytest.mark.heavy
def test_a_step_longer_than_the_minutes_is_announced_and_is_the_last(tmp_path):
    with redirect_stderr(Errors()) as errors:
        source = Waiting(errors, "a step takes longer than the limit of 0.01 min;")
        limits = Limits(minutes=0.01)
        outcome = train(KILLED, source, RunFolder(tmp_path), CPU, limits=limits)
    assert source.found
    assert (outcome.step, outcome.finished) == (1, True)


def test_steps_that_fit_into_the_minutes_are_not_announced(tmp_path):
    config, limits = replace(KILLED, steps=1), Limits(minutes=1000)
    with redirect_stderr(Errors()) as errors:
        train(config, RandomSource(), RunFolder(tmp_path), CPU, limits=limits)
    assert "longer" not in errors.getvalue()


def test_without_a_terminal_a_line_comes_even_while_a_step_lasts(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "EVERY", 0.01)
    with redirect_stderr(Errors()) as errors:
        source = Waiting(errors, "step 0, 0.0 % done")
        train(replace(KILLED, steps=1), source, RunFolder(tmp_path), CPU)
    assert source.found
    assert "━" not in errors.getvalue()


def test_a_quiet_run_prints_no_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "EVERY", 0.001)
    with redirect_stderr(Errors()) as errors:
        train(replace(KILLED, steps=1), RandomSource(), RunFolder(tmp_path), CPU, quiet=True)
    assert "step" not in errors.getvalue()


@pytest.mark.heavy
def test_warnings_of_libraries_do_not_reach_users(tmp_path, chairs, run, monkeypatch):
    real = Trainer.train_step

    def warning(*arguments):
        warnings.warn("from a library", UserWarning, stacklevel=1)
        return real(*arguments)

    monkeypatch.setattr(Trainer, "train_step", warning)
    monkeypatch.setattr("sys.warnoptions", [])
    arguments = words("chairs-0", chairs, tmp_path / "run")
    arguments.remove("--quiet")  # which would print no warning at all
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, err = run(*arguments)
    assert code == 0
    assert "from a library" not in err


def test_warnings_of_our_own_do_reach_users(monkeypatch):
    monkeypatch.setattr("sys.warnoptions", [])
    with warnings.catch_warnings(record=True) as heard:
        hide_library_warnings()
        warnings.warn("from us", SlowWarning, stacklevel=1)
        warnings.warn("from a library", UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in heard] == ["from us"]


def test_training_in_bf16_on_a_cpu_that_emulates_it_warns(monkeypatch):
    monkeypatch.setattr(settings, "has_bf16", lambda device: False)
    reduced = replace(KILLED, optimizer=replace(KILLED.optimizer, precision="bf16"))
    with pytest.warns(SlowWarning, match=r"set the recipe's optimizer\.precision to fp32"):
        Trainer(reduced, CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer(KILLED, CPU)


@pytest.mark.parametrize(("asked", "expected"), [([], 0), (["default"], 1)])
def test_workers_hide_warnings_unless_asked_for(monkeypatch, asked, expected):
    monkeypatch.setattr("sys.warnoptions", asked)
    monkeypatch.setattr(loader, "use_one_core", lambda: None)  # this process keeps its threads
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        loader.start_worker(0)
        warnings.warn("from a library", UserWarning, stacklevel=1)
    assert len(heard) == expected
