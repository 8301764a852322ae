"""The paper's tables with our rows: those of an ablation, and table 2 by the weights of a chain."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple, TypeAlias

from ..config import TrainConfig, structure
from ..data import FlowPair, data_set
from ..errors import InputError
from ..evaluation import Grid, Result, evaluate, grid_markdown, table
from ..evaluation.evaluate import Progress
from ..evaluation.metrics import METRICS
from ..pictures.figures import draw_figure, encode_figure
from ..training.run_folder import RunFolder
from .spread import Results, label, spread_document, spread_grids, with_spread
from .variants import HELD_OUT, Variant, VariantResult

_HEADINGS = {"epe": "", "epe_images": "", "fl_all": " Fl-all"}  # after the data set's name


class Report(NamedTuple):
    """A study as tables, as numbers, and as files."""

    grids: list[Grid]
    document: dict[str, Any]
    contents: dict[Path, bytes]  # STUDY.md, .json, .svg and .png


def report_study(study: str, finished: Mapping[Variant, VariantResult], folder: Path) -> Report:
    """Report on the variants of a study, those of several seeds together."""
    results: dict[str, list[VariantResult]] = {}
    for variant, result in finished.items():
        results.setdefault(variant.name, []).append(result)
    published = table.published_ablation(study)
    grids = [_ablation_grid(study, results, published), *spread_grids(study, results)]
    text, curves = "\n\n".join(map(grid_markdown, grids)) + "\n", {}
    if any(result.curve for result in finished.values()):  # the paper's stages have no scenes
        text += f"\n![EPE on held-out scenes against the pairs seen]({study}.svg)\n"
        curves = {kind: ablation_plot(study, results, kind) for kind in ("svg", "png")}
    document = {
        "study": study,
        "variants": {name: [asdict(run) for run in runs] for name, runs in results.items()},
        "published": [row._asdict() for row in published],
        **spread_document(study, results),
    }
    numbers = json.dumps(document, indent=1) + "\n"
    contents = {"md": text.encode(), "json": numbers.encode(), **curves}
    files = {folder / f"{study}.{kind}": content for kind, content in contents.items()}
    return Report(grids, document, files)


def ablation_plot(study: str, results: Results, file_format: str) -> bytes:
    """Plot held-out EPE against pairs seen: the mean over seeds and their range."""
    figure = draw_figure(6.4, 4)
    axes = figure.subplots()
    for name, runs in results.items():
        pairs = sorted(map(int, runs[0].curve))
        errors = [[run.curve[str(n)] for run in runs if str(n) in run.curve] for n in pairs]
        (line,) = axes.plot(pairs, [mean(e) for e in errors], "o-", markersize=3, label=name)
        low, high = [min(e) for e in errors], [max(e) for e in errors]
        axes.fill_between(pairs, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(yscale="log", xlabel="pairs seen", ylabel="EPE on held-out scenes (px)", title=study)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    return encode_figure(figure, file_format)


def _ablation_grid(study: str, results: Results, published: Sequence[table.AblationRow]) -> Grid:
    """Our rows, then the paper's, in the same columns."""
    columns = _columns(results, published)
    headings = [f"{label(data)}{_HEADINGS[metric]}" for data, metric in columns]
    rows = []
    for name, runs in results.items():
        cells = [_spread(runs, data, metric) for data, metric in columns]
        rows.append([name, "us", f"{runs[0].parameters / 1e6:.1f} M", *cells])
    for row in published:
        cells = [table.format_metric(metric, row.value(data, metric)) for data, metric in columns]
        rows.append([row.variant, "paper", "", *cells])
    title = f"Ablation: {study} (EPE in px, Fl-all in %)"
    return Grid(title, ["variant", "by", "size", *headings], rows, _note(results))


def _columns(results: Results, published: Sequence[table.AblationRow]) -> list[tuple[str, str]]:
    """(data set, metric) of every score of ours or the paper's."""
    data = dict.fromkeys(d for runs in results.values() for run in runs for d in run.scores)
    columns = [
        (name, metric)
        for name in data
        for metric in (("epe",) if name == HELD_OUT else data_set(name).metrics)
    ]
    fields = {table.ABLATION_COLUMNS.get(column) for column in columns}
    for column, field in table.ABLATION_COLUMNS.items():
        if field not in fields and any(row.value(*column) is not None for row in published):
            columns.append(column)
            fields.add(field)
    return columns


def _spread(runs: Sequence[VariantResult], data: str, metric: str) -> str:
    scores = [run.scores[data].metrics for run in runs if data in run.scores]
    values = [score[metric] for score in scores if metric in score]
    return with_spread(values, METRICS[metric].digits) if values else ""


def _note(results: Results) -> str:
    runs = [run for runs in results.values() for run in runs]
    pairs = ", ".join(f"{n:,}" for n in sorted({run.trained_pairs for run in runs}))
    counts, devices = sorted({*map(len, results.values())}), sorted({run.device for run in runs})
    seeds = f"{' or '.join(map(str, counts))} seed{'s' * (counts[-1] > 1)}"
    spread = "±: standard deviation over the seeds." if counts[-1] > 1 else "One seed: no spread."
    sizes = {name: score.num_pairs for run in runs for name, score in run.scores.items()}
    fewer = [
        f"{label(name)} {count} of {table.ABLATION_SIZE[name]}"
        for name, count in sizes.items()
        if table.ABLATION_SIZE.get(name, count) != count
    ]
    versions = sorted({run.code for run in runs})
    text = (
        f"Us: {pairs} pairs each, {seeds}, on {', '.join(devices)}, code {', '.join(versions)}. "
        f"{spread} "
        "Paper: Chairs after training there, the others after Chairs and Things."
    )
    if not fewer:
        return text
    return f"{text} Not comparable, fewer pairs than the paper's: {', '.join(fewer)}."


WITH_PROJECTION, WITHOUT_PROJECTION = "DICL", "DICL without DAP"
_SINTEL = ("sintel-clean", "sintel-final")
STAGES = {
    "things": (table.SYNTHETIC, ("kitti15", *_SINTEL)),
    "kitti": (table.FINE_TUNED, ("kitti15",)),
    "sintel": (table.FINE_TUNED, _SINTEL),
}
"""By stage: the row that its weights belong to, and the data sets that they are scored on."""
COLUMNS = table.relevant_columns(STAGES["things"][1])
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
    unfinished: str | None  # how far the stage is, if it has not finished

    @property
    def training(self) -> str:
        """What they were trained on, as table 2 has it."""
        return STAGES[self.stage][0]


Chains: TypeAlias = Mapping[str, Mapping[str, StageWeights]]  # by method and stage


@dataclass(frozen=True)
class Table2:
    """Our measurements, and why some are missing."""

    measured: Sequence[tuple[StageWeights, Result]]  # of a stage's weights on one data set
    missing: Sequence[str]
    notes: Sequence[str]

    def grids(self) -> list[Grid]:
        """Return the table, and our numbers averaged over pixels and over pairs."""
        return [self._table(), self._both_ways()]

    def document(self) -> dict[str, Any]:
        """Return all rows and measurements as plain values."""
        return {
            "rows": [
                {
                    "method": row.method,
                    "training": row.training,
                    "by": by,
                    "on_training_data": row.on_training_data,
                    "metrics": table.values_by_data(COLUMNS, value),
                }
                for by, row, value in sorted(self._rows(), key=lambda entry: entry[0] == "ours")
            ],
            "measured": [
                {
                    "method": weights.method,
                    "training": weights.training,
                    "stage": weights.stage,
                    "weights": str(weights.path),
                    "unfinished": weights.unfinished,
                    "data": result.data,
                    "num_pairs": len(result.scores),
                    "metrics": result.total.values,
                }
                for weights, result in self.measured
            ],
            "missing": list(self.missing),
            "notes": list(self.notes),
            "metrics": {name: metric.meaning for name, metric in METRICS.items()},
        }

    def _rows(self) -> Iterator[tuple[str, table.PublishedRow, table.Value]]:
        """The paper's rows with a number in our columns, each before ours of the same method."""
        for row in table.relevant_rows(COLUMNS):
            if row.source == table.TABLE_2:
                yield "paper", row, row.value
                if row.method in (WITH_PROJECTION, WITHOUT_PROJECTION):
                    yield "ours", row, partial(self._value, row.method, row.training)

    def _value(self, method: str, training: str, data: str, metric: str) -> float | None:
        """Our number for a cell; None: not measured."""
        for weights, result in self.measured:
            if (weights.method, weights.training, result.data) == (method, training, data):
                return result.total.values.get(metric)
        return None

    def _table(self) -> Grid:
        rows = []
        for by, row, value in self._rows():
            cells = [_cell(value(*column), column[1], row.training) for column in COLUMNS]
            name = f"{row.method}, ours" if by == "ours" else row.method
            rows.append([name, row.training, *cells])
        headings = [f"{data_set(data).label} {METRICS[metric].heading}" for data, metric in COLUMNS]
        missing = [f"Missing: {'; '.join(self.missing)}."] if self.missing else []
        note = " ".join([*missing, *self.notes, _MEANING])
        return Grid("Table 2 of the paper", ["method", "trained on", *headings], rows, note)

    def _both_ways(self) -> Grid:
        rows = []
        for weights, result in self.measured:
            values = result.total.values
            cells = [_cell(values.get(name), name, weights.training) for name in _BOTH_WAYS]
            network = f"{weights.method}, {weights.training}"
            rows.append([network, f"{result.label}, {len(result.scores)}", *cells])
        headings = ["ours", "data set, pairs", *(METRICS[name].heading for name in _BOTH_WAYS)]
        note = "EPE and Fl-all: of all pixels of the data set. Images: the mean over its pairs."
        return Grid("Over pixels and over images", headings, rows, note)


def _cell(value: float | None, metric: str, training: str) -> str:
    return table.format_metric(metric, value, "({})" if training == table.FINE_TUNED else "{}")


def find_chain(method: str, folder: Path) -> dict[str, StageWeights]:
    """Return the weights in a chain folder, by stage; none at all is an error."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder} of a chain")
    stages = {}
    for stage in STAGES:
        run = RunFolder(folder / stage)
        path = run.best if run.best.is_file() else run.weights  # if it was not validated
        if path.is_file():
            stages[stage] = StageWeights(method, stage, path, _unfinished(run))
    if not stages:
        raise InputError(
            f"{folder} holds no weights of {', '.join(STAGES)}; name the folder that `dicl-flow "
            f"reproduce` has written"
        )
    return stages


def _unfinished(run: RunFolder) -> str | None:
    """How far a run is, if the last weights are not those of its last step."""
    if not (run.config.is_file() and run.weights.is_file()):
        return None
    from ..weights import read_weights

    settings = tomllib.loads(run.config.read_text(encoding="utf-8"))
    wanted = structure(TrainConfig, settings).steps
    done = int(read_weights(run.weights).about.get("steps", wanted))
    return f"step {done:,} of {wanted:,}" if done < wanted else None


def measure_table(
    chains: Chains,
    data: Mapping[str, Sequence[FlowPair]],
    device: str,
    progress: Progress | None = None,
) -> Table2:
    """Score the weights of each chain, by method, on the data sets that there are."""
    from ..estimation.estimator import load
    from ..weights import read_weights

    trained = [weights for stages in chains.values() for weights in stages.values()]
    for weights in trained:
        has_projection = read_weights(weights.path).config.projection
        if has_projection != (weights.method == WITH_PROJECTION):
            state = "with" if has_projection else "without"
            raise InputError(
                f"{weights.path} was trained {state} DAP, but was given for the row "
                f"{weights.method!r}; swap the chain folders"
            )
    measured: list[tuple[StageWeights, Result]] = []
    for weights in trained:
        sets = {name: data[name] for name in STAGES[weights.stage][1] if name in data}
        if sets:
            estimator = load(weights.path, device, "fp32")
            name = f"{weights.method} after {weights.stage}"
            results = evaluate(sets, {name: estimator}, progress=progress).results
            measured += [(weights, result) for result in results]
    notes = [f"{w.path}: not finished, {w.unfinished}." for w in trained if w.unfinished]
    notes += table.partial_notes([result for _, result in measured])
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
