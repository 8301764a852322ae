"""Scores methods on data sets: `dicl_flow.evaluate`, and the work of `dicl-flow eval`."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from ..data import FlowPair, data_set, list_pairs
from ..errors import InputError
from ..files import encode_image, write_files
from .drawings import draw_prediction
from .methods import Methods, Predictor, folder_name, kept_predictors, open_methods, predictors
from .score import Result, score_predictions
from .table import as_document, to_markdown

Data: TypeAlias = Mapping[str, str | Path | Sequence[FlowPair]]
"""By the name of a data set: its folder, or some of its pairs."""
Progress: TypeAlias = Callable[[Collection[FlowPair], str], Iterable[FlowPair]]
"""Returns the pairs that it is given, and may show how far that has come."""


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
    sets = _list(data, valid_only=valid_only)
    computed: dict[str, str] = {}
    opened = open_methods(methods, computed, **options)
    chosen = predictors(opened, None if keep is None else Path(keep))
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
    sets = _list(data, valid_only=valid_only)
    return Evaluation(_score(sets, kept_predictors(Path(folder)), worst, progress))


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
    folder.mkdir(parents=True, exist_ok=True)
    for rank, (pair, flow, *_) in enumerate(predictor(result.data, worst), start=1):
        path = folder / f"{rank:02d}-{pair.name.replace('/', '-')}.png"
        write_files({path: encode_image(path, draw_prediction(pair, flow))})
