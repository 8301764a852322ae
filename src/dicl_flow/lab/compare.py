"""Compare methods on the same pairs: one sheet per pair with estimates and their errors."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..data import FlowPair, read_frames
from ..errors import InputError
from ..evaluation.drawings import truth_and_errors
from ..evaluation.evaluate import BASELINES, folder_name
from ..evaluation.metrics import Score, check_estimate, score_pair
from ..files import FLOW_SUFFIXES, Array, read_flow
from ..pictures.figures import contact_sheet, thumbnail, write_on
from ..pictures.visualize import error_to_rgb, flow_to_rgb, full_color

FlowMethod: TypeAlias = Callable[[FlowPair, Array, Array], Array]  # a pair and its frames -> flow
_CELL = (448, 336)  # px


class GivenFlows(NamedTuple):
    """The flow files of one method, by the name of the pair."""

    name: str
    files: Mapping[str, Path]


def find_flows(argument: str, pairs: Sequence[FlowPair]) -> GivenFlows | None:
    """Find the flow of each pair; None if `argument` is not NAME=PATH, but weights or a baseline.

    A folder holds DATA/PAIR.flo, as `eval` keeps them, or PAIR.flo, as the benchmarks name them,
    or other formats of flow files.
    """
    name, separator, place = argument.partition("=")
    if not separator or Path(argument).is_file():
        return None
    path = Path(place).expanduser()
    if not name or not path.exists():
        raise FileNotFoundError(f"{argument!r} is NAME=PATH, but there is no {path}")
    if path.is_dir():
        return GivenFlows(name, {pair.name: _in_folder(path, pair) for pair in pairs})
    if len(pairs) > 1:
        raise InputError(f"{path} is one flow, but there are {len(pairs)} pairs; give a folder")
    return GivenFlows(name, {pairs[0].name: path})


def _in_folder(folder: Path, pair: FlowPair) -> Path:
    data, slash, rest = pair.name.partition("/")
    names = [f"{folder_name(data)}/{rest}", rest] if slash else [data]
    candidates = [folder / f"{name}{suffix}" for name in names for suffix in FLOW_SUFFIXES]
    for path in candidates:
        if path.is_file():
            return path
    raise FileNotFoundError(f"no flow of {pair.name} in {folder}; expected {candidates[0]}")


def sheet_names(pairs: Iterable[FlowPair]) -> dict[str, str]:
    """By pair: the name of its sheet, without folders; no two are alike, not even in capitals."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for pair in pairs:
        plain = re.sub("[/:]", "-", pair.name)
        numbered = (f"{plain}-{number}" for number in count(2))
        name = next(each for each in chain([plain], numbered) if each.lower() not in taken)
        taken.add(name.lower())
        names[pair.name] = f"{name}.png"
    return names


class Comparison(NamedTuple):
    """The estimates of all methods for one pair."""

    sheet: Array
    scores: dict[str, Score]  # by method


def open_methods(entries: Sequence[str | GivenFlows], **options: Any) -> dict[str, FlowMethod]:
    """Open baselines by name and given flows; else weights, with `options` of `load`."""
    methods: dict[str, FlowMethod] = {}
    for entry in entries:
        name, method = _open(entry, options)
        if name in methods:
            raise InputError(f"two methods are called {name!r}; rename one of them")
        methods[name] = method
    return methods


def _open(entry: str | GivenFlows, options: Mapping[str, Any]) -> tuple[str, FlowMethod]:
    if isinstance(entry, GivenFlows):
        return entry.name, lambda pair, image1, _: _read(entry.files[pair.name], image1)
    if entry in BASELINES:
        baseline = BASELINES[entry]()
        return entry, lambda _, *frames: baseline(*frames)
    from ..estimation.estimator import load
    from .volumes import weights_name

    estimator = load(entry, **options)
    return weights_name(entry), lambda _, *frames: estimator(*frames).flow


def _read(path: Path, image1: Array) -> Array:
    flow = read_flow(path)
    try:
        check_estimate(flow, image1)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return flow


def compare(pair: FlowPair, methods: Mapping[str, FlowMethod]) -> Comparison:
    """Estimate, score and draw one pair: frames and truth, then a row per method."""
    frames = read_frames(pair)
    flows = {name: method(pair, *frames) for name, method in methods.items()}
    scores = {name: score_pair(pair, flow) for name, flow in flows.items()}
    truth, errors = truth_and_errors(pair, frames, flows)
    longest = full_color(next(iter(flows.values())) if truth is None else truth)
    first = [*frames] if truth is None else [*frames, flow_to_rgb(truth, longest)]
    known = np.concatenate([error[valid] for error, valid in errors.values()])
    brightest = max(float(np.percentile(known, 95)), 1.0)  # one scale for all methods
    rows = [first]
    for name, flow in flows.items():
        estimate = thumbnail(flow_to_rgb(flow, longest), *_CELL)
        error = thumbnail(error_to_rgb(*errors[name], brightest), *_CELL)
        rows.append([write_on(estimate, _caption(scores[name].values)), error])
    unit = "grey levels, warped: no truth" if truth is None else "px"
    legend = f"full colour {longest:.1f} px; error, bright {brightest:.1f} {unit}"
    columns = ["frame 1 / estimate", "frame 2 / error", "truth"][: len(first)]
    sheet = contact_sheet(rows, [f"{pair.name}   {legend}", *flows], columns, *_CELL)
    return Comparison(sheet, scores)


def _caption(values: Mapping[str, float]) -> str:
    if "epe" in values:
        return f"EPE {values['epe']:.2f}  Fl {values['fl_all']:.1f} %"
    return f"warping error {values['warping_error']:.2f}"
