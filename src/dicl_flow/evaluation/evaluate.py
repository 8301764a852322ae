"""Estimates of methods on data sets: kept, scored, drawn, and packed for the benchmarks."""

import json
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import cv2
import numpy as np

from ..config import NORMAL, find_quality
from ..data import (
    FlowPair,
    data_set,
    kitti_test_pairs,
    list_pairs,
    read_frames,
    sintel_test_pairs,
    spring_test_pairs,
)
from ..errors import InputError, check_name, refusing
from ..files import (
    Array,
    check_flow_name,
    encode_flow,
    encode_image,
    encode_npy,
    read_flow,
    read_npy,
    replacing,
    write_files,
)
from ..weights import resolve
from .drawings import draw_prediction
from .metrics import Result, Score, check_estimate, score_pair
from .table import as_document, to_markdown

if TYPE_CHECKING:
    from ..estimation.estimator import FlowEstimator

KITTI_RANGE = (-512.0, 511.984375)  # what 16 bits at 1/64 px hold
Method: TypeAlias = Callable[[Array, Array], Array | tuple[Array, Array]]
"""Two (H, W, 3) uint8 RGB frames -> (H, W, 2) float32 flow, or it and (H, W) confidence."""
Methods: TypeAlias = "Iterable[str | Path | None] | Mapping[str, FlowEstimator | Method]"
"""Names of weights or baselines, or estimators and functions by name; None: the default weights."""
Data: TypeAlias = Mapping[str, str | Path | Sequence[FlowPair]]
"""By the name of a data set: its folder, or some of its pairs."""
Progress: TypeAlias = Callable[[Collection[FlowPair], str], Iterable[FlowPair]]
"""Returns the pairs that it is given, and may show how far that has come."""


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
    flow: Array  # (H, W, 2) float32
    confidence: Array | None = None  # (H, W) float32, for methods that have one


Predictor: TypeAlias = Callable[[str, Iterable[FlowPair]], Iterator[Prediction]]
"""The name of a data set and some of its pairs -> their predictions."""


def predict(
    pairs: Iterable[FlowPair], method: Method, folder: Path | None = None
) -> Iterator[Prediction]:
    """Estimate the flow of one pair after the other, and keep it in `folder` if one is given."""
    for pair in pairs:
        frames = read_frames(pair)
        with refusing(f"pair {pair.name}", InputError):
            estimate = method(*frames)
            flow, confidence = estimate if isinstance(estimate, tuple) else (estimate, None)
            check_estimate(flow, frames[0])
        if folder is not None:
            flow_file, confidence_file = _paths(folder, pair)
            contents = {flow_file: encode_flow(flow_file, flow)}
            if confidence is not None:
                contents[confidence_file] = encode_npy(confidence)
            write_files(contents)
        yield Prediction(pair, flow, confidence)


def read_predictions(pairs: Iterable[FlowPair], folder: Path) -> Iterator[Prediction]:
    """Read the estimates that `predict` kept in `folder`."""
    for pair in pairs:
        flow_file, confidence_file = _paths(folder, pair)
        known = confidence_file.exists()
        confidence = read_npy(confidence_file) if known else None
        yield Prediction(pair, read_flow(flow_file), confidence)


def _paths(folder: Path, pair: FlowPair) -> tuple[Path, Path]:
    """Flow and confidence; a "/" in the pair's name makes folders."""
    return folder / f"{pair.name}.flo", folder / f"{pair.name}.confidence.npy"


def folder_name(data: str) -> str:
    """The name of a data set's folder: some systems allow no colon in file names."""
    return data.replace(":", "-")


def score_predictions(predictions: Iterable[Prediction]) -> dict[str, Score]:
    """Score each predicted pair, by name."""
    return {prediction[0].name: score_pair(*prediction) for prediction in predictions}


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` has found."""

    results: list[Result]
    """One for each data set and method, in this order."""
    computed: dict[str, str] = field(default_factory=dict)
    """By the size of the frames, WIDTHxHEIGHT: at which size the network has seen them."""

    def document(self) -> dict[str, Any]:
        """Return all numbers, of each pair too, with the published results."""
        return as_document(self.results, self.computed)

    def to_json(self) -> str:
        """Return `document` as the text of a file."""
        return json.dumps(self.document(), indent=2) + "\n"

    def to_markdown(self) -> str:
        """Return the tables, and what their columns mean."""
        return to_markdown(self.results)


def evaluate(
    data: Data,
    methods: Methods = (None,),
    *,
    keep: str | Path | None = None,
    worst: tuple[int, str | Path] | None = None,
    valid_only: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Evaluation:
    """Estimate the pairs of data sets, and score the flows.

    `data` has a folder, or a list of pairs, for each name of a data set. `methods` are weights
    (names or files; None: the default) and baselines ("dis"), or a dictionary of estimators and
    functions that return the flow of two (H, W, 3) uint8 frames. `options` are those of
    `dicl_flow.load`, for weights: `device`, `quality` and the others. `keep` is a folder for the
    flows, as METHOD/DATA/PAIR.flo; `worst=(10, folder)` draws the 10 worst pairs of each.
    `valid_only` leaves out the pixels that Sintel marks as invalid; published numbers count them.

    >>> found = dicl_flow.evaluate({"kitti15": "KITTI2015"}, ["rendered", "dis"])
    >>> found.results[0].total.values["fl_all"]
    """

    def predictor(name: str, method: Method) -> Predictor:
        folder = None if keep is None else Path(keep, name)
        return lambda data, pairs: predict(pairs, method, folder and folder / folder_name(data))

    sets = _list(data, valid_only=valid_only)
    computed: dict[str, str] = {}
    opened = _open_methods(methods, computed, options).items()
    chosen = {name: predictor(name, method) for name, method in opened}
    return Evaluation(_score(sets, chosen, worst, progress), computed)


def evaluate_predictions(
    data: Data,
    folder: str | Path,
    *,
    worst: tuple[int, str | Path] | None = None,
    valid_only: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Score the flows that `evaluate` has kept in `folder`."""

    def reader(path: Path) -> Predictor:
        return lambda data, pairs: read_predictions(pairs, path / folder_name(data))

    sets, place = _list(data, valid_only=valid_only), Path(folder)
    if not place.is_dir():
        raise FileNotFoundError(f"no folder {place} of predictions")
    chosen = {path.name: reader(path) for path in sorted(place.iterdir()) if path.is_dir()}
    if not chosen:
        raise InputError(f"{place} holds no predictions; expected METHOD/DATA/PAIR.flo")
    return Evaluation(_score(sets, chosen, worst, progress))


def _open_methods(
    methods: Methods, computed: dict[str, str], options: dict[str, Any]
) -> dict[str, Method]:
    """Open each method; while networks estimate, `computed` is filled in by size of the frames."""
    if isinstance(methods, Mapping):
        if options:
            raise InputError(
                f"{', '.join(options)}: for weights given by name; estimators and functions are "
                f"used as they are"
            )
        from ..estimation.estimator import FlowEstimator

        return {
            name: _noting(method, computed) if isinstance(method, FlowEstimator) else method
            for name, method in methods.items()
        }
    quality = find_quality(options.get("quality", NORMAL)).name
    names: dict[str, str | Path | None] = {}
    for entry in methods:
        name = str(entry) if entry in BASELINES else resolve(entry).stem  # before torch is imported
        name += "" if quality == NORMAL or entry in BASELINES else f"-{quality}"
        if name in names:
            raise InputError(f"two methods have the name {name!r}; rename a weights file")
        names[name] = entry
    return {name: _open(entry, computed, options) for name, entry in names.items()}


def _open(entry: str | Path | None, computed: dict[str, str], options: dict[str, Any]) -> Method:
    if entry in BASELINES:
        return BASELINES[str(entry)]()
    from ..estimation.estimator import load

    return _noting(load(entry, **options), computed)


def _noting(estimator: "FlowEstimator", computed: dict[str, str]) -> Method:
    """Estimate, and note for each size of frames how that is done."""
    from ..estimation.estimator import explain_frame

    def method(image1: Array, image2: Array) -> tuple[Array, Array]:
        result = estimator(image1, image2)
        height, width = result.flow.shape[:2]
        computed[f"{width}x{height}"] = explain_frame(estimator, (height, width)).value
        return result.flow, result.confidence

    return method


def _list(data: Data, *, valid_only: bool) -> dict[str, Sequence[FlowPair]]:
    sets = {
        name: list_pairs(name, Path(found)) if isinstance(found, str | Path) else found
        for name, found in data.items()
    }
    if not valid_only:
        return sets
    if not any(pair.invalid for pairs in sets.values() for pair in pairs):
        raise InputError("`valid_only`: no pair has a mask of invalid pixels; only Sintel has them")
    return {name: [replace(pair, valid_only=True) for pair in sets[name]] for name in sets}


def _score(
    sets: Mapping[str, Sequence[FlowPair]],
    chosen: Mapping[str, Predictor],
    worst: tuple[int, str | Path] | None,
    progress: Progress | None,
) -> list[Result]:
    results = []
    for data, pairs in sets.items():
        for method, predictor in chosen.items():
            watched = progress(pairs, f"{method} on {data}") if progress else pairs
            scores = score_predictions(predictor(data, watched))
            masked = sum(pair.valid_only and pair.invalid is not None for pair in pairs)
            results.append(Result(data, data_set(data).label, method, scores, masked))
            if worst is not None:
                _draw_worst(results[-1], pairs, predictor, worst[0], Path(worst[1]))
    return results


def _draw_worst(
    result: Result, pairs: Sequence[FlowPair], predictor: Predictor, count: int, pictures: Path
) -> None:
    """Estimate the worst pairs again, rather than hold all flows until they are known."""
    by_name = {pair.name: pair for pair in pairs}
    worst = [by_name[name] for name in result.worst(count)]
    folder = pictures / result.method / folder_name(result.data)
    for rank, (pair, flow, _) in enumerate(predictor(result.data, worst), start=1):
        path = folder / f"{rank:02d}-{pair.name.replace('/', '-')}.png"
        write_files({path: encode_image(path, draw_prediction(pair, flow))})


SUBMISSIONS = {"sintel": 2 * 552, "kitti15": 200, "kitti12": 195, "spring": 3960}
"""The number of test pairs by benchmark."""


def submission_entries(benchmark: str, root: Path) -> dict[str, FlowPair]:
    """Return the test pairs of a benchmark, by the names of their files in the archive."""
    sets: dict[str, Callable[[], dict[str, list[FlowPair]]]] = {  # by benchmark and file name
        "sintel": lambda: {f"{p}/{{}}.flo": sintel_test_pairs(root, p) for p in ("clean", "final")},
        "kitti15": lambda: {"flow/{}.png": kitti_test_pairs(root, 2015)},
        "kitti12": lambda: {"{}.png": kitti_test_pairs(root, 2012)},
        "spring": lambda: {"{}.flo5": spring_test_pairs(root)},
    }
    check_name("benchmark", benchmark, SUBMISSIONS)
    listed = sets[benchmark]()
    for name in listed:
        check_flow_name(name)  # .flo5 needs a library
    return {name.format(pair.name): pair for name, pairs in listed.items() for pair in pairs}


def missing_pairs(benchmark: str, entries: Mapping[str, FlowPair]) -> int:
    """Return how many test pairs of a benchmark are not among these."""
    return SUBMISSIONS[benchmark] - len(entries)


def write_submission(path: Path, names: Iterable[str], predictions: Iterable[Prediction]) -> None:
    """Write the archive `path`, whole or not at all; `predictions` are in the order of `names`."""
    with (
        replacing(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, (_, flow, *_) in zip(names, predictions, strict=True):
            kept = np.clip(flow, *KITTI_RANGE) if name.endswith(".png") else flow
            packed = zipfile.ZIP_STORED if name.endswith(".flo5") else None  # is compressed itself
            archive.writestr(name, encode_flow(name, kept), packed)
