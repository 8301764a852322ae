"""Slow motion of a whole clip: the part of `interpolate` that takes one input."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .outputs import check_outputs, folders_of, refuse_inputs

if TYPE_CHECKING:
    from ..estimation.estimator import FlowEstimator
    from ..video import Source, Writer


class Network(NamedTuple):
    """The options that choose a network, and where and how it is computed."""

    weights: str | None
    quality: str
    compute: dict[str, Any]

    def load(self) -> "FlowEstimator":
        """Return the estimator that was asked for."""
        from ..estimation.estimator import load

        return load(self.weights, quality=self.quality, **self.compute)


def slow_motion(
    clip: str,
    output: Path,
    factor: int,
    fps: float | None,
    encoder: str | None,
    part: tuple[str | None, str | None, str],
    network: Network,
    *,
    restart: bool,
    quiet: bool,
) -> dict[str, Any]:
    """Write a clip `factor` times slower; return the summary.

    `part` has the values of --start, --end and --on-error.
    """
    from ..data.video_frames import check_source
    from ..weights import resolve

    check_source(clip)
    resolve(network.weights)  # a missing file is named before torch is imported

    from ..estimation.sequence import FlowSequence
    from ..video import (
        STILL_RATE,
        Checkpoint,
        Moment,
        Selection,
        SlowMotion,
        SlowMotionFrames,
        check_rate,
        exact_rate,
        find_coding,
        open_source,
        stamp,
    )
    from .watching import run_watched

    start, end, on_error = part
    selection = Selection(
        Moment.parse("--start", start), Moment.parse("--end", end), on_error=on_error
    )
    folder = _check(output, clip, network.weights)
    coding = None if folder and encoder is None else find_coding(output, encoder)
    source = open_source(clip, keep_depth=folder)
    _refuse(source)
    refuse_inputs([output], folders_of(source.files))
    rate = fps or source.rate or STILL_RATE
    check_rate(output, rate)
    estimator = network.load()
    settings = {
        "input": source.stamp,
        "output": [output.resolve()],
        **{"factor": factor, "fps": fps, "encoder": encoder, "start": start, "end": end},
        "quality": network.quality,
        "weights": stamp(resolve(network.weights)),
        **{name: str(getattr(estimator, name)) for name in ("device", "precision", "backend")},
    }
    made: list[Writer] = []

    def writers(parts: Path) -> "list[Writer]":
        rest = (parts, exact_rate(rate), factor, coding)
        made.append(SlowMotionFrames(output, factor) if folder else SlowMotion(output, *rest))
        return made

    files = selection.chosen(source.files)
    used = partial(selection.used_frames, source)
    summary = run_watched(
        source,
        selection,
        FlowSequence(estimator, backward=True),
        writers,
        Checkpoint(output, settings, frames=files, used=used, restart=restart),
        quiet=quiet,
    )
    return {**summary, "cuts_held": int(made[0].memory["cuts"])}


def _check(output: Path, clip: str, weights: str | None) -> bool:
    """Refuse an output that cannot be written; return whether it is a folder."""
    from ..errors import InputError
    from ..video import output_kind

    kind = output_kind(output)
    if kind == "array":
        raise InputError(f"{output}: slow motion is written as a video or a folder of images")
    folder = kind == "folder"
    files, folders = ([], [output]) if folder else ([output], [])
    check_outputs(files, folders=folders, inputs=[Path(clip), weights])
    return folder


def _refuse(source: "Source") -> None:
    from ..errors import InputError

    if source.live:
        raise InputError("a camera is not a clip; record it first, then slow it down")
    if source.scenes:
        raise InputError(
            "KITTI's pairs are not a clip: there is no motion from one pair to the next"
        )
