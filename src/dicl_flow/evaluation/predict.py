"""Predict, apart from scoring: predictions can be kept on disk and scored again."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from ..data import FlowPair, read_frames
from ..errors import InputError
from ..files import read_flow, write_flow
from .baseline import Array, Method
from .metrics import check_estimate

Prediction: TypeAlias = tuple[FlowPair, Array]
"""A pair and its (H, W, 2) float32 flow."""


def predict(
    pairs: Iterable[FlowPair], method: Method, folder: Path | None = None
) -> Iterator[Prediction]:
    """Estimate the flow of each pair in turn, and keep it in `folder` when one is given."""
    for pair in pairs:
        frames = read_frames(pair)
        try:
            flow = method(*frames)
            check_estimate(flow, (frames[0].shape[0], frames[0].shape[1]))
        except InputError as error:
            raise InputError(f"pair {pair.name}: {error}") from None
        if folder is not None:
            path = _path(folder, pair)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_flow(path, flow)
        yield pair, flow


def read_predictions(pairs: Iterable[FlowPair], folder: Path) -> Iterator[Prediction]:
    """Read what `predict` kept in `folder`."""
    return ((pair, read_flow(_path(folder, pair))) for pair in pairs)


def _path(folder: Path, pair: FlowPair) -> Path:
    return folder / f"{pair.name}.flo"  # a "/" in the name makes folders
