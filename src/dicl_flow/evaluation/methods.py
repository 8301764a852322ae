"""The methods to be scored, and their estimates, which can be kept and scored again."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import cv2
import numpy as np

from ..config import NORMAL, find_quality
from ..data import FlowPair, read_frames
from ..errors import InputError
from ..files import Array, decode_npy, encode_flow, encode_npy, read_bytes, read_flow, write_files
from ..weights import resolve
from .metrics import check_estimate

if TYPE_CHECKING:
    from ..estimation.estimator import FlowEstimator


Method: TypeAlias = Callable[[Array, Array], Array | tuple[Array, Array]]
"""Two (H, W, 3) uint8 RGB frames -> (H, W, 2) float32 flow, or it and (H, W) confidence."""


def dis() -> Callable[[Array, Array], Array]:
    """OpenCV's dense inverse search (Kroeger et al. 2016) with its "medium" settings."""
    if not hasattr(cv2, "DISOpticalFlow_create"):
        raise InputError(
            f"OpenCV {cv2.__version__} was built without DISOpticalFlow; install "
            f"opencv-python-headless to use the baseline 'dis'"
        )
    solver = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)

    def estimate(image1: Array, image2: Array) -> Array:
        grey1, grey2 = (cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in (image1, image2))
        try:
            return np.asarray(solver.calc(grey1, grey2, None))
        except cv2.error as error:
            size = f"{image1.shape[1]}x{image1.shape[0]}"
            raise InputError(f"OpenCV's DIS cannot process {size} px: {error.err}") from None

    return estimate


BASELINES: dict[str, Callable[[], Callable[[Array, Array], Array]]] = {"dis": dis}


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
    """Estimate the flow of one pair after the other, and keep it in `folder` if one is given."""
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


Methods: TypeAlias = "Iterable[str | Path | None] | Mapping[str, FlowEstimator | Method]"
"""Names of weights or baselines, or estimators and functions by name; None: the default weights."""
Predictor: TypeAlias = Callable[[str, Iterable[FlowPair]], Iterator[Prediction]]
"""The name of a data set and some of its pairs -> their predictions."""


def open_methods(methods: Methods, computed: dict[str, str], **options: Any) -> dict[str, Method]:
    """Open each method; `options` are those of `load`, for the methods that are weights.

    `computed` is filled in while networks estimate: for each size of frames, how they are seen.
    """
    if isinstance(methods, Mapping):
        if options:
            raise InputError(
                f"{', '.join(options)}: for weights given by name; estimators and functions are "
                f"used as they are"
            )
        return {name: _callable(method, computed) for name, method in methods.items()}
    quality = find_quality(options.get("quality", NORMAL)).name
    names: dict[str, str | Path | None] = {}
    for entry in methods:
        name = _name(entry, quality)  # a missing file is named before torch is imported
        if name in names:
            raise InputError(f"two methods have the name {name!r}; rename a weights file")
        names[name] = entry
    return {name: _open(entry, computed, options) for name, entry in names.items()}


def predictors(methods: Mapping[str, Method], keep: Path | None) -> dict[str, Predictor]:
    """Return what estimates pairs, and keeps the flows in `keep` as METHOD/DATA/PAIR.flo."""

    def predictor(name: str, method: Method) -> Predictor:
        return lambda data, pairs: predict(pairs, method, keep and keep / name / folder_name(data))

    return {name: predictor(name, method) for name, method in methods.items()}


def kept_predictors(folder: Path) -> dict[str, Predictor]:
    """Return what reads the flows that `predictors` has kept in `folder`."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder} of predictions")
    methods = sorted(path for path in folder.iterdir() if path.is_dir())
    if not methods:
        raise InputError(f"{folder} holds no predictions; expected METHOD/DATA/PAIR.flo")

    def reader(path: Path) -> Predictor:
        return lambda data, pairs: read_predictions(pairs, path / folder_name(data))

    return {path.name: reader(path) for path in methods}


def folder_name(data: str) -> str:
    """Return the name of a data set's folder: some systems allow no colon in file names."""
    return data.replace(":", "-")


def _name(entry: str | Path | None, quality: str) -> str:
    if entry in BASELINES:
        return str(entry)
    name = resolve(entry).stem
    return name if quality == NORMAL else f"{name}-{quality}"


def _open(entry: str | Path | None, computed: dict[str, str], options: dict[str, Any]) -> Method:
    if entry in BASELINES:
        return BASELINES[str(entry)]()
    from ..estimation.estimator import load

    return _noting(load(entry, **options), computed)


def _callable(method: "FlowEstimator | Method", computed: dict[str, str]) -> Method:
    from ..estimation.estimator import FlowEstimator

    return _noting(method, computed) if isinstance(method, FlowEstimator) else method


def _noting(estimator: "FlowEstimator", computed: dict[str, str]) -> Method:
    """Estimate, and note for each size of frames how that is done."""
    from ..estimation.estimator import explain_frame

    def method(image1: Array, image2: Array) -> tuple[Array, Array]:
        result = estimator(image1, image2)
        height, width = result.flow.shape[:2]
        computed[f"{width}x{height}"] = explain_frame(estimator, (height, width)).value
        return result.flow, result.confidence

    return method
