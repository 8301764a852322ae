"""Opens the methods to be scored: weights, baselines, functions, or predictions on disk."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..config import NORMAL, find_quality
from ..data import FlowPair
from ..errors import InputError
from ..files import Array
from ..weights import resolve
from .baseline import BASELINES, Method
from .predict import Prediction, predict, read_predictions

if TYPE_CHECKING:
    from ..estimation.estimator import FlowEstimator

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
