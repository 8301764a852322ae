"""The progress of one pair: what the pipeline counts, and what people are shown of it."""

import signal
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
import torch
from conftest import FAST_BYTES, SMALL

from dicl_flow.cli import options
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.models import build

SCALED = replace(SMALL, padding="resize", max_pixels=32 * 48)
LIMIT = FAST_BYTES * 260 * 48  # bytes: suffices for tiles of 256x40


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("config", "quality", "size", "options", "expected"),
    [
        (SMALL, "normal", (48, 64), {}, [48 * 64]),
        (SMALL, "best", (48, 64), {}, [48 * 64, 5 * 48 * 64]),
        (SCALED, "normal", (64, 96), {"full_size": True}, [32 * 48, 32 * 48 + 64 * 96]),
        # the first pass sees 112x16, the last one tiles of 256 and 172 columns, padded
        (
            SCALED,
            "normal",
            (40, 300),
            {"full_size": True, "memory_limit": LIMIT},
            [112 * 16, 112 * 16 + 256 * 48, 112 * 16 + (256 + 176) * 48],
        ),
    ],
)
def test_every_pass_and_tile_is_counted(config, quality, size, options, expected):
    torch.manual_seed(0)
    estimator = FlowEstimator(build(config), "cpu", "fp32", "fast", quality=quality, **options)
    frames = np.random.default_rng(0).integers(0, 255, (2, *size, 3), np.uint8)
    told: list[tuple[int, int]] = []
    found = estimator(*frames, progress=lambda *numbers: told.append(numbers))
    assert told == [(done, expected[-1]) for done in expected]
    np.testing.assert_array_equal(found.flow, estimator(*frames).flow)
    told.clear()
    estimator(*frames, backward=True, progress=lambda *numbers: told.append(numbers))
    assert told[-1] == (2 * expected[-1],) * 2
    told.clear()
    estimator(*frames, initial=found.flow, progress=lambda *numbers: told.append(numbers))
    assert told[-1][0] == told[-1][1] <= expected[-1]


def test_the_line_says_how_long_it_will_take(monkeypatch):
    now = 100.0
    monkeypatch.setattr(options, "perf_counter", lambda: now)
    progress = options.EstimateProgress()
    now = 110.0
    assert (progress.line(), progress.share) == ("estimating: 10 s", 0)
    progress(1, 4)
    now = 115.0
    assert progress.line() == "estimating: 15 s, 38%, about 25 s left"
    now = 150.0
    assert (progress.line(), progress.share) == ("estimating: 50 s", 1)


COMMANDS = ["flow {} {} -o {}/x.flo", "interpolate {} {} -o {}/x.png"]


@pytest.fixture
def estimate(run, frames, tmp_path, small_weights):
    """Run a command for two frames."""

    def call(command, *words):
        folder = tmp_path / "out"
        folder.mkdir(exist_ok=True)
        code, _, error = run(
            *command.format(*frames, folder).split(), *words, "-w", small_weights, "--device", "cpu"
        )
        return code, error, [path.name for path in folder.iterdir()]

    return call


@pytest.mark.parametrize("command", COMMANDS)
def test_long_work_has_lines_short_and_quiet_work_has_none(estimate, command, monkeypatch):
    assert estimate(command)[:2] == (0, "")
    shown, call, line = Event(), FlowEstimator.__call__, options.EstimateProgress.line

    def last_until_shown(estimator, *frames, **how):
        assert shown.wait(60)
        return call(estimator, *frames, **how)

    def note(progress):
        shown.set()
        return line(progress)

    monkeypatch.setattr(options, "LATE", 0.001)
    monkeypatch.setattr(options.EstimateProgress, "line", note)
    with monkeypatch.context() as patch:
        patch.setattr(FlowEstimator, "__call__", last_until_shown)
        code, error, _ = estimate(command)
    assert code == 0
    assert error.startswith("estimating: ")
    monkeypatch.setattr(options, "Thread", pytest.fail)
    for option in ("--quiet", "--json"):
        assert estimate(command, option)[:2] == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("place", ["__init__", "__call__"])
def test_ctrl_c_says_that_nothing_was_written(estimate, command, place, monkeypatch):
    def interrupt(*arguments, **options):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(FlowEstimator, place, interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    try:
        found = estimate(command)
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == (130, "stopped; nothing was written\n", [])
