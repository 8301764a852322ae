"""The whole of an adaptation: what it writes, how it goes on, what it refuses; the command."""

import json
import re
import signal
import sys
from dataclasses import replace

import pytest
import torch
from children import SUPPORT, run_forked_child
from small_adaptation import (
    CHANGES,
    NETWORK,
    accept_everything,
    moving_picture,
    write_footage,
    write_weights,
)

from dicl_flow import adapt
from dicl_flow.adaptation import job
from dicl_flow.adaptation.plan import WorkFolder
from dicl_flow.adaptation.settings import AdaptConfig, read_settings
from dicl_flow.adaptation.student import between
from dicl_flow.config import Calibration, LevelConfig, ModelConfig, find_quality
from dicl_flow.errors import InputError
from dicl_flow.evaluation import Calibrated
from dicl_flow.weights import read_weights

CALIBRATION = Calibration(0.0, *[0.0] * 7)
EVEN = Calibration(1.0, *[0.0] * 7, threshold=20.0)
"""Stands for a fit: errors of a network of random weights are never within 1 px, or always."""


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_footage(tmp_path_factory.mktemp("footage") / "private", moving_picture(16))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    known = {"calibration": CALIBRATION, "quality_calibrations": {"best": CALIBRATION}}
    return write_weights(folder / "start.safetensors", **known)


def adapt_tiny(clip, output, weights, *changes, **how):
    return adapt(
        str(clip), output, weights, steps=2, changes=[*CHANGES, *changes], device="cpu", **how
    )


def fit_evenly(monkeypatch):
    """Fit nothing; return the list of qualities that were to be fitted."""
    fitted = []

    def fit(path, photos, *, quality, **options):
        fitted.append(quality)
        weights = read_weights(path).calibrated(find_quality(quality), EVEN)
        return Calibrated(weights, EVEN, 1, 1.0, 0.0, {})

    monkeypatch.setattr(job, "calibrate", fit)
    return fitted


@pytest.mark.heavy
def test_what_is_better_is_calibrated_and_written(
    clip, weights, tmp_path, monkeypatch, small_scenes
):
    accept_everything(monkeypatch.setattr)
    fitted = fit_evenly(monkeypatch)
    output = tmp_path / "new/mine.safetensors"
    ended = adapt_tiny(clip, output, weights)
    assert ended.accepted
    assert ended.weights == output
    assert fitted == ["normal", "best"]
    written = read_weights(output)
    assert (written.calibration, written.quality_calibrations) == (EVEN, {"best": EVEN})
    assert written.config == NETWORK
    assert written.about["steps"] == "2"
    hashed = ended.numbers["footage"][0]["sha256"]
    assert written.about["footage"] == f"sha256 {hashed} of the hashes of 16 files"
    everything = b"".join(p.read_bytes() for p in output.parent.rglob("*") if p.is_file())
    assert b"private" not in everything
    report = (ended.report / "report.md").read_text()
    assert "# Adaptation: accepted" in report
    assert all(
        (ended.report / name).is_file() for name in ("pairs.png", "kept.png", "training.png")
    )
    assert not (ended.report / "work").exists()
    before = output.read_bytes()
    again = adapt_tiny(clip, output, weights)  # has ended: nothing is computed
    assert again == ended
    assert output.read_bytes() == before
    with pytest.raises(InputError, match="was begun with another recipe; start anew with"):
        adapt_tiny(clip, output, weights, "batch=4")
    output.unlink()
    with pytest.raises(InputError, match="is gone; `restart=True` starts anew"):
        adapt_tiny(clip, output, weights)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("errors", "share"),
    [([1.02], 0.5), ([1.2, 1.03], 0.3), ([1.2, 1.04], 0.3)],
    ids=["half of the way", "less", "none: refused"],
)
def test_it_goes_as_far_as_little_is_forgotten(
    clip, weights, tmp_path, monkeypatch, small_scenes, errors, share
):
    told = iter([1.0, *errors])
    monkeypatch.setattr("dicl_flow.adaptation.acceptance.scene_errors", lambda *_: [next(told)])
    if errors[-1] <= 1.03:
        accept_everything(monkeypatch.setattr)
        fit_evenly(monkeypatch)
    ended = adapt_tiny(clip, tmp_path / "mine.safetensors", weights)
    assert ended.accepted is (errors[-1] <= 1.03)
    assert ended.numbers["share"] == share
    report = (ended.report / "report.md").read_text()
    assert f"go {share:.0%} of the way" in report
    assert ("too much is forgotten" in report) is not ended.accepted
    if ended.accepted:
        start, end = (
            read_weights(weights),
            read_weights(ended.report / "student/weights.safetensors"),
        )
        written = read_weights(ended.weights).tensors
        for key, tensor in between(start, end, share).tensors.items():
            assert torch.equal(written[key], tensor)


@pytest.mark.heavy
def test_the_command_refuses_what_is_not_better(
    clip, weights, tmp_path, run, monkeypatch, small_scenes
):
    monkeypatch.setattr("dicl_flow.adaptation.adapt.expected_seconds", lambda *run: {"all": 60.0})
    output = tmp_path / "mine.safetensors"
    output.write_bytes(b"older")
    words = ["adapt", clip, "-o", output, "-w", weights, "--steps", 1, "--device", "cpu", "--json"]
    rarely = [change for change in CHANGES if change != "log_every=1"]  # than it has steps
    words += [word for change in rarely for word in ("--set", change)]
    code, printed, _ = run(*words)
    assert code == 4
    found = json.loads(printed)
    assert found["accepted"] is False
    assert found["written"] == []
    assert any("does not fall by more than its noise" in reason for reason in found["not_accepted"])
    assert output.read_bytes() == b"older"
    (warning,) = [text for text in found["warnings"] if "mine.safetensors" in text]
    assert "is older: it was there before and is unchanged" in warning
    report = json.loads((tmp_path / "mine.adapt/report.json").read_text())
    assert report["verdict"]["accepted"] is False
    assert report["teacher"]["kept"] > 0
    code, printed, _ = run(*(word for word in words if word != "--json"))
    assert code == 4
    assert re.search("^not accepted +on the footage held back", printed, re.MULTILINE)


def test_where_the_teacher_trusts_nothing_it_ends_with_a_report(clip, weights, tmp_path):
    none = "adapt.agreement=[0.0,0.0]"
    ended = adapt_tiny(clip, tmp_path / "mine.safetensors", weights, none)
    assert not ended.accepted
    assert ended.weights is None
    (reason,) = ended.reasons
    assert "the teacher trusts hardly any pixel" in reason
    assert any("trusts only 0.0%" in warning for warning in ended.warnings)
    assert sorted(path.name for path in ended.report.iterdir()) == [
        *("kept.png", "report.json", "report.md")
    ]
    assert adapt_tiny(clip, tmp_path / "mine.safetensors", weights, none) == ended


def test_a_dry_run_says_time_and_disk_and_writes_nothing(
    clip, weights, tmp_path, run, small_scenes
):
    output = tmp_path / "mine.safetensors"
    words = ["adapt", clip, "-o", output, "-w", weights, "--minutes", 3, "--dry-run", "--json"]
    words += [word for change in CHANGES for word in ("--set", change)]
    code, printed, _ = run(*words, "--device", "cpu")
    assert code == 0
    found = json.loads(printed)
    assert (found["clips"], found["frames"], found["pairs"], found["minutes"]) == (1, 16, 4, 3)
    assert 1e-6 < found["gigabytes"] < 1e-3
    assert "training 3 min" in found["expected_time"]
    assert [*tmp_path.iterdir()] == []


@pytest.mark.heavy
def test_a_signal_stops_between_two_pairs_and_the_same_call_goes_on(
    clip, weights, tmp_path, small_scenes, monkeypatch
):
    accept_everything(monkeypatch.setattr, accepted=False)
    output, seen = tmp_path / "mine.safetensors", []

    def progress(items, words):
        for item in items:
            seen.append(words)
            if seen.count("teacher") == 3 and words == "teacher":
                signal.raise_signal(signal.SIGTERM)
            yield item

    with pytest.raises(job.Stopped) as stopped:
        adapt_tiny(clip, output, weights, progress=progress)
    assert stopped.value.signal == signal.SIGTERM
    lessons = [*(tmp_path / "mine.adapt/work/lessons").glob("*[0-9].npy")]
    assert len(lessons) == 2
    adapt_tiny(clip, output, weights, progress=progress)
    assert seen.count("teacher") == 3 + 2  # those that were left


@pytest.mark.parametrize(
    "kills",
    [pytest.param(2, marks=pytest.mark.heavy), pytest.param(10, marks=pytest.mark.slow)],
)
def test_killed_at_random_moments_it_ends_in_the_same_weights(tmp_path, kills):
    write_weights(tmp_path / "start.safetensors")
    child = run_forked_child(SUPPORT / "adapt_kills_child.py", tmp_path, kills)
    assert child.returncode == 0, child.stderr


def test_another_run_in_the_same_folder_is_refused(clip, weights, tmp_path):
    folder = WorkFolder(tmp_path / "mine.adapt")
    with folder.locked(), pytest.raises(InputError, match="another run is writing to"):
        adapt_tiny(clip, tmp_path / "mine.safetensors", weights)
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "mine.adapt/student").mkdir(parents=True)
    (tmp_path / "mine.adapt/student/notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is in the way"):
        adapt_tiny(clip, tmp_path / "mine.safetensors", weights)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("no.mp4 -o x.safetensors", "no video, folder or camera no.mp4"),
        ("camera:0 -o x.safetensors", "a camera cannot be adapted to"),
        ("{clip} -o x.pth", "the output must end in .safetensors"),
        ("{clip} -o x.safetensors -w no.safetensors", "no weights file at no.safetensors"),
        ("{clip} -o x.safetensors --steps 5 --minutes 5", "give --steps or --minutes, not both"),
        ("{clip} -o x.safetensors --photos no", "no folder of photographs no"),
        ("{clip} -o x.safetensors --set adapt.pares=3", "unknown key 'adapt.pares'"),
        ("{clip} -o x.safetensors --set adapt.held_back=0.9", "held_back must be in [0.05, 0.5]"),
        ("{clip} -o x.safetensors --disk 0.00001", "disk must be in [0.001"),
        ("{few} -o x.safetensors", "the footage is too short: it has 3 frames"),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(
    words, message, clip, tmp_path, run, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    few = write_footage(tmp_path / "few", moving_picture(3))
    chosen = [word.format(clip=clip, few=few) for word in words.split()]
    code, _, errors = run("adapt", *chosen, "--device", "cpu", "-q")
    assert code == 2
    assert message in errors
    assert errors.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["few"]


def test_a_missing_matplotlib_is_said_before_any_work(clip, weights, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match="need matplotlib"):
        adapt_tiny(clip, tmp_path / "mine.safetensors", weights)
    assert [*tmp_path.iterdir()] == []


def test_settings_and_recipe_follow_the_network():
    changes = ["adapt.new_frames=0.25", "batch=4"]
    settings, recipe = read_settings(changes, ModelConfig(), 7, 50)
    assert settings == AdaptConfig(new_frames=0.25)
    assert (recipe.batch, recipe.seed, recipe.steps) == (4, 7, 50)
    assert recipe.model == ModelConfig()
    on_cpu = job.recipe_on_cpu(replace(recipe, batch=12))
    assert (on_cpu.optimizer.accumulate, on_cpu.save_every) == (6, 10)
    assert job.recipe_on_cpu(replace(recipe, batch=3)).optimizer.accumulate == 1
    assert recipe.loss.matching == (1, 1, 1, 0, 0)
    levels = (*ModelConfig().levels[1:], LevelConfig(2, 2))
    _, recipe = read_settings([], ModelConfig(levels=levels), 0)
    assert recipe.loss.refined == (0.5, 0.5, 0.75, 1.0, 1.0)
    assert recipe.loss.matching == (1, 1, 0, 0, 0)
    _, recipe = read_settings([], replace(ModelConfig(host="pwcnet"), multiple=128), 0)
    assert recipe.loss.kind == "multi-scale"
    assert recipe.loss.matching == ()


def test_a_batch_fits_into_the_memory_of_a_gpu():
    _, recipe = read_settings([], NETWORK, 0)  # 16 pairs of 512x384
    sizes = {gib: job.recipe_within(recipe, gib).batch for gib in (80, 23, 11, 1)}
    assert sizes == {80: 16, 23: 9, 11: 4, 1: 1}
    in_parts = replace(recipe, optimizer=replace(recipe.optimizer, accumulate=8))
    assert [job.recipe_within(in_parts, gib).batch for gib in (80, 11, 1)] == [16, 16, 8]
