"""The paper's table 2 with our rows: the weights of a chain below the published numbers."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from ..config import TrainConfig, structure
from ..data import FlowPair, data_set
from ..errors import InputError
from ..evaluation import METRICS, Grid, PublishedRow, Result, evaluate, format_metric
from ..evaluation.evaluate import Progress
from ..evaluation.table import (
    FINE_TUNED,
    SYNTHETIC,
    TABLE_2,
    Value,
    partial_notes,
    relevant_columns,
    relevant_rows,
    values_by_data,
)
from ..training.run_folder import RunFolder

WITH_PROJECTION, WITHOUT_PROJECTION = "DICL", "DICL without DAP"
_SINTEL = ("sintel-clean", "sintel-final")
STAGES = {
    "things": (SYNTHETIC, ("kitti15", *_SINTEL)),
    "kitti": (FINE_TUNED, ("kitti15",)),
    "sintel": (FINE_TUNED, _SINTEL),
}
"""By stage: the row that its weights belong to, and the data sets that they are scored on."""
COLUMNS = relevant_columns(STAGES["things"][1])
Chains: TypeAlias = "Mapping[str, Mapping[str, StageWeights]]"
"""By method and stage."""
_MEANING = (
    "C: FlyingChairs, T: FlyingThings3D, +K/S: then KITTI or Sintel, whichever is tested. (…): "
    "measured on training data. KITTI's EPE is the mean over the pairs, its Fl-all a share of all "
    "pixels, as in the authors' code."
)
_BOTH_WAYS = ("epe", "epe_images", "fl_all", "fl_images")


@dataclass(frozen=True)
class StageWeights:
    """The weights that a stage of a chain has left."""

    method: str
    stage: str
    path: Path
    unfinished: str | None
    """How far the stage is, if it has not finished."""

    @property
    def training(self) -> str:
        """What they were trained on, as table 2 has it."""
        return STAGES[self.stage][0]


@dataclass(frozen=True)
class Measured:
    """The score of the weights of a stage on one data set."""

    weights: StageWeights
    result: Result


@dataclass(frozen=True)
class Table2:
    """Our measurements, and why some are missing."""

    measured: Sequence[Measured]
    missing: Sequence[str]
    notes: Sequence[str]

    def grids(self) -> list[Grid]:
        """Return the table, and our numbers averaged over pixels and over pairs."""
        return [self._table(), self._both_ways()]

    def document(self) -> dict[str, Any]:
        """Return all rows and measurements as plain values."""
        return {
            "rows": [
                *(_row_json("paper", row, row.value) for row in _published()),
                *(_row_json("ours", row, self._our(row)) for row in _published() if _is_ours(row)),
            ],
            "measured": [_measured_json(entry) for entry in self.measured],
            "missing": list(self.missing),
            "notes": list(self.notes),
            "metrics": {name: METRICS[name].meaning for name in METRICS},
        }

    def value(self, method: str, training: str, data: str, metric: str) -> float | None:
        """Return our number for a cell; None: not measured."""
        for entry in self.measured:
            weights = entry.weights
            if (weights.method, weights.training, entry.result.data) == (method, training, data):
                return entry.result.total.values.get(metric)
        return None

    def _table(self) -> Grid:
        rows = []
        for row in _published():
            rows.append([row.method, row.training, *_cells(row.value, row.training)])
            if _is_ours(row):
                cells = _cells(self._our(row), row.training)
                rows.append([f"{row.method}, ours", row.training, *cells])
        headings = [f"{data_set(data).label} {METRICS[metric].heading}" for data, metric in COLUMNS]
        missing = [f"Missing: {'; '.join(self.missing)}."] if self.missing else []
        note = " ".join([*missing, *self.notes, _MEANING])
        return Grid("Table 2 of the paper", ["method", "trained on", *headings], rows, note)

    def _both_ways(self) -> Grid:
        rows = []
        for entry in self.measured:
            values, result = entry.result.total.values, entry.result
            cells = [_cell(values.get(name), name, entry.weights.training) for name in _BOTH_WAYS]
            network = f"{entry.weights.method}, {entry.weights.training}"
            rows.append([network, f"{result.label}, {len(result.scores)}", *cells])
        headings = ["ours", "data set, pairs", *(METRICS[name].heading for name in _BOTH_WAYS)]
        note = "EPE and Fl-all: of all pixels of the data set. Images: the mean over its pairs."
        return Grid("Over pixels and over images", headings, rows, note)

    def _our(self, row: PublishedRow) -> Value:
        return partial(self.value, row.method, row.training)


def find_chain(method: str, folder: Path) -> dict[str, StageWeights]:
    """Return the weights in a chain folder, by stage; none at all is an error.

    They are the best ones, or the last ones of a stage that was not validated.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder} of a chain")
    found = {}
    for stage in STAGES:
        run = RunFolder(folder / stage)
        path = run.best if run.best.is_file() else run.weights
        if path.is_file():
            found[stage] = StageWeights(method, stage, path, _unfinished(run))
    if not found:
        raise InputError(
            f"{folder} holds no weights of {', '.join(STAGES)}; name the folder that `dicl-flow "
            f"reproduce` has written"
        )
    return found


def check_projection(weights: StageWeights) -> None:
    """Refuse a chain that was trained the other way than its row says."""
    from ..weights import read_weights

    has_projection = read_weights(weights.path).config.projection
    if has_projection != (weights.method == WITH_PROJECTION):
        state = "with" if has_projection else "without"
        raise InputError(
            f"{weights.path} was trained {state} DAP, but was given for the row "
            f"{weights.method!r}; swap the chain folders"
        )


def measure_table(
    chains: Chains,
    data: Mapping[str, Sequence[FlowPair]],
    device: str,
    progress: Progress | None = None,
) -> Table2:
    """Score the weights of each chain, by method, on the data sets that there are."""
    from ..estimation.estimator import load

    found = [weights for stages in chains.values() for weights in stages.values()]
    for weights in found:
        check_projection(weights)
    measured = []
    for weights in found:
        sets = {name: data[name] for name in STAGES[weights.stage][1] if name in data}
        if sets:
            estimator = load(weights.path, device, "fp32")
            name = f"{weights.method} after {weights.stage}"
            results = evaluate(sets, {name: estimator}, progress=progress).results
            measured += [Measured(weights, result) for result in results]
    unfinished = [
        f"{weights.path}: not finished, {weights.unfinished}."
        for weights in found
        if weights.unfinished
    ]
    notes = [*unfinished, *partial_notes([entry.result for entry in measured])]
    return Table2(measured, list(_missing(chains, data)), notes)


def _missing(chains: Chains, data: Mapping[str, Sequence[FlowPair]]) -> Iterator[str]:
    """Name what is missing for cells that stay empty."""
    for method in (WITH_PROJECTION, WITHOUT_PROJECTION):
        if method not in chains:
            yield f"{method}: no chain folder"
            continue
        for stage, (training, names) in STAGES.items():
            if stage not in chains[method]:
                labels = ", ".join(data_set(name).label for name in names)
                yield f"{method}, {training}, {labels}: no weights of the stage {stage}"
    for name in STAGES["things"][1]:
        if name not in data:
            yield f"{data_set(name).label}: no data set {name}"


def _unfinished(run: RunFolder) -> str | None:
    """Return how far a run is, if the last weights are not those of its last step."""
    if not (run.config.is_file() and run.weights.is_file()):
        return None
    from ..weights import read_weights

    table = tomllib.loads(run.config.read_text(encoding="utf-8"))
    wanted = structure(TrainConfig, table).steps
    done = int(read_weights(run.weights).about.get("steps", wanted))
    return f"step {done:,} of {wanted:,}" if done < wanted else None


def _published() -> list[PublishedRow]:
    """Return the paper's rows that have a number in our columns."""
    return [row for row in relevant_rows(COLUMNS) if row.source == TABLE_2]


def _is_ours(row: PublishedRow) -> bool:
    """Whether the row is of a method that we train."""
    return row.method in (WITH_PROJECTION, WITHOUT_PROJECTION)


def _cells(value: Value, training: str) -> list[str]:
    return [_cell(value(data, metric), metric, training) for data, metric in COLUMNS]


def _cell(value: float | None, metric: str, training: str) -> str:
    return format_metric(metric, value, "({})" if training == FINE_TUNED else "{}")


def _row_json(by: str, row: PublishedRow, value: Value) -> dict[str, Any]:
    return {
        "method": row.method,
        "training": row.training,
        "by": by,
        "on_training_data": row.on_training_data,
        "metrics": values_by_data(COLUMNS, value),
    }


def _measured_json(entry: Measured) -> dict[str, Any]:
    weights, result = entry.weights, entry.result
    return {
        "method": weights.method,
        "training": weights.training,
        "stage": weights.stage,
        "weights": str(weights.path),
        "unfinished": weights.unfinished,
        "data": result.data,
        "num_pairs": len(result.scores),
        "metrics": result.total.values,
    }
