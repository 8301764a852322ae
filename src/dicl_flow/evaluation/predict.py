"""Estimates the flow of pairs, separately from scoring: flows can be kept and scored again."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..data import FlowPair, read_frames
from ..errors import InputError
from ..files import Array, decode_npy, encode_flow, encode_npy, read_bytes, read_flow, write_files
from .baseline import Method
from .metrics import check_estimate


class Prediction(NamedTuple):
    """The estimate of a method for a pair."""

    pair: FlowPair
    flow: Array
    """(H, W, 2) float32."""
    confidence: Array | None = None
    """(H, W) float32, for methods that have one."""


def predict(
    pairs: Iterable[FlowPair], method: Method, folder: Path | None = None
) -> Iterator[Prediction]:
    """Estimate the flow of each pair in turn, and keep it in `folder` if one is given."""
    for pair in pairs:
        frames = read_frames(pair)
        try:
            estimate = method(*frames)
            flow, confidence = estimate if isinstance(estimate, tuple) else (estimate, None)
            check_estimate(flow, (frames[0].shape[0], frames[0].shape[1]))
        except InputError as error:
            raise InputError(f"pair {pair.name}: {error}") from None
        prediction = Prediction(pair, flow, confidence)
        if folder is not None:
            _keep(prediction, folder)
        yield prediction


def read_predictions(pairs: Iterable[FlowPair], folder: Path) -> Iterator[Prediction]:
    """Read the estimates that `predict` kept in `folder`."""
    for pair in pairs:
        flow_file, confidence_file = _paths(folder, pair)
        known = confidence_file.exists()
        confidence = decode_npy(read_bytes(confidence_file)) if known else None
        yield Prediction(pair, read_flow(flow_file), confidence)


def _keep(prediction: Prediction, folder: Path) -> None:
    flow_file, confidence_file = _paths(folder, prediction.pair)
    flow_file.parent.mkdir(parents=True, exist_ok=True)
    contents = {flow_file: encode_flow(flow_file, prediction.flow)}
    if prediction.confidence is not None:
        contents[confidence_file] = encode_npy(prediction.confidence)
    write_files(contents)


def _paths(folder: Path, pair: FlowPair) -> tuple[Path, Path]:
    """Flow and confidence; a "/" in the pair's name makes folders."""
    return folder / f"{pair.name}.flo", folder / f"{pair.name}.confidence.npy"
