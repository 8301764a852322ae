"""Adapts weights to footage: the interface for Python users, and what a run will take."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .job import Adapted, recipe_for, run
from .plan import Item, Plan, make_plan

if TYPE_CHECKING:
    from ..estimation.estimator import FlowEstimator

_AHEAD = 2  # estimates of a pair before one is timed


def adapt(
    clips: str | Path | Sequence[str | Path],
    output: str | Path,
    weights: str | Path | None = None,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    photos: str | Path | None = None,
    changes: Sequence[str] = (),
    seed: int = 0,
    keep_names: bool = False,
    restart: bool = False,
    device: str = "auto",
    progress: Callable[[Sequence[Any], str], Iterable[Any]] | None = None,
) -> Adapted:
    """Train weights on footage without ground truth, and write them if they are better on it.

    `clips` are videos, folders or patterns of frames; `weights` those to start from (default: the
    packaged). The same call goes on with a run that was interrupted. With `steps` the result does
    not depend on the clock; `minutes` limits the time of the training instead. `photos` is a folder
    of photographs for rendered scenes; without one their textures are computed. `changes` are
    those of the command's `--set`. Names of files are kept out of weights and report unless
    `keep_names`. `progress` returns the items that it is given, and may show how far that has come.

    >>> ended = dicl_flow.adapt("clip.mp4", "mine.safetensors", minutes=10)
    >>> ended.accepted, ended.reasons, ended.report
    """
    texts = [str(clip) for clip in ([clips] if isinstance(clips, str | Path) else clips)]

    def watch(items: Sequence[Item], words: str) -> Iterator[Item]:
        return iter(items if progress is None else progress(items, words))

    plan = make_plan(
        texts,
        Path(output),
        weights,
        photos=None if photos is None else Path(photos).expanduser(),
        changes=changes,
        steps=steps,
        minutes=minutes,
        seed=seed,
        keep_names=keep_names,
        watch=watch,
    )
    return run(plan, device=device, restart=restart, watch=watch)


def expected_seconds(plan: Plan, device: str) -> dict[str, float]:
    """Return the seconds of teacher, training and checks, from a few of their steps here."""
    from ..config import NORMAL
    from ..estimation.compute import choose_device
    from ..estimation.estimator import load
    from ..training import PROCEDURAL, Processes
    from ..training.chain import measure_pace

    size = max((plan.size(pair.clip) for pair in plan.footage.training), key=lambda s: s[0] * s[1])
    both_ways = {
        quality: _pair_seconds(load(plan.weights, device, quality=quality), size)
        for quality in {*plan.qualities, NORMAL}
    }
    judged = 2 * len(plan.footage.held_back) + plan.settings.scenes
    calibrated = 3 * plan.settings.calibration_scenes
    taught = sum(both_ways[quality] for quality in plan.qualities)
    expected = {
        "teacher": len(plan.footage.training) * taught,
        "checks": (judged + calibrated) * both_ways[NORMAL],
    }
    if plan.minutes is not None:
        return {**expected, "training": 60 * plan.minutes}
    roots = {"rendered": plan.photos or Path(PROCEDURAL)}
    processes = Processes(choose_device(device))
    recipe = recipe_for(plan.recipe, processes) if processes.on_gpu else plan.recipe
    pace = measure_pace(recipe, roots, processes)
    return {**expected, "training": pace.seconds(recipe, 0)}


def _pair_seconds(estimator: "FlowEstimator", size: tuple[int, int]) -> float:
    """Return the time of a pair in both directions."""
    import numpy as np

    from ..estimation.estimator import BothWays

    both_ways, dice = BothWays(estimator), np.random.default_rng(0)
    frames = dice.integers(0, 256, (2, *size, 3), np.uint8)
    on_gpu = estimator.device.type == "cuda"
    for _ in range(_AHEAD if on_gpu else 0):
        both_ways(*frames)
    start = perf_counter()
    both_ways(*frames)[0].flow.sum().item()  # waits for the device
    return perf_counter() - start
