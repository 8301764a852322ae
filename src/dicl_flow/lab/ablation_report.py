"""The results of an ablation with the paper's rows: a table, a plot, JSON, and their files."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from ..data import data_set
from ..errors import InputError
from ..evaluation import PUBLISHED_ABLATIONS, AblationRow, Grid, format_metric, grid_markdown
from ..evaluation.table import ABLATION_COLUMNS, ABLATION_SIZE
from ..files import read_bytes
from ..pictures.figures import draw_figure, encode_figure
from .ablation import HELD_OUT, VariantFolder, VariantResult
from .variants import Variant

_HEADINGS = {"epe": "", "epe_images": "", "fl_all": " Fl-all"}  # after the data set's name

Results = Mapping[str, Sequence[VariantResult]]
"""By variant: one result per seed."""


def ablation_grid(study: str, results: Results) -> Grid:
    """Our rows, then the paper's, in the same columns."""
    published = [row for row in PUBLISHED_ABLATIONS if row.study == study]
    columns = _columns(results, published)
    headings = [f"{_label(data)}{_HEADINGS[metric]}" for data, metric in columns]
    rows = [_our_row(name, runs, columns) for name, runs in results.items()]
    rows += [
        [row.variant, "paper", "", *(format_metric(c[1], row.value(*c)) for c in columns)]
        for row in published
    ]
    return Grid(
        f"Ablation: {study} (EPE in px, Fl-all in %)",
        ["variant", "by", "size", *headings],
        rows,
        _note(results),
    )


def ablation_document(study: str, results: Results) -> dict[str, Any]:
    """All numbers: every seed of every variant, and the paper's rows."""
    published = [row._asdict() for row in PUBLISHED_ABLATIONS if row.study == study]
    ours = {name: [asdict(run) for run in runs] for name, runs in results.items()}
    return {"study": study, "variants": ours, "published": published}


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


def _columns(results: Results, published: Sequence[AblationRow]) -> list[tuple[str, str]]:
    """(data set, metric) of every score of ours or the paper's."""
    data = dict.fromkeys(d for runs in results.values() for run in runs for d in run.scores)
    columns = [
        (name, metric)
        for name in data
        for metric in (("epe",) if name == HELD_OUT else data_set(name).metrics)
    ]
    fields = {ABLATION_COLUMNS.get(column) for column in columns}
    for column, field in ABLATION_COLUMNS.items():
        if field not in fields and any(row.value(*column) is not None for row in published):
            columns.append(column)
            fields.add(field)
    return columns


def _label(data: str) -> str:
    """The short name of a data set in headings: FlyingChairs (val) -> Chairs."""
    return data if data == HELD_OUT else data_set(data).label.split(" (")[0].removeprefix("Flying")


def _our_row(
    name: str, runs: Sequence[VariantResult], columns: Sequence[tuple[str, str]]
) -> list[str]:
    cells = [_spread(runs, data, metric) for data, metric in columns]
    return [name, "us", f"{runs[0].parameters / 1e6:.1f} M", *cells]


def _spread(runs: Sequence[VariantResult], data: str, metric: str) -> str:
    scores = [run.scores[data].metrics for run in runs if data in run.scores]
    values = [score[metric] for score in scores if metric in score]
    if len(values) < 2:
        return format_metric(metric, values[0] if values else None)
    return " ± ".join(format_metric(metric, value) for value in (mean(values), stdev(values)))


def _note(results: Results) -> str:
    runs = [run for runs in results.values() for run in runs]
    pairs = ", ".join(f"{n:,}" for n in sorted({run.trained_pairs for run in runs}))
    counts, devices = sorted({*map(len, results.values())}), sorted({run.device for run in runs})
    seeds = f"{' or '.join(map(str, counts))} seed{'s' * (counts[-1] > 1)}"
    spread = "±: standard deviation over the seeds." if counts[-1] > 1 else "One seed: no spread."
    sizes = {name: score.num_pairs for run in runs for name, score in run.scores.items()}
    partial = [
        f"{_label(name)} {count} of {ABLATION_SIZE[name]}"
        for name, count in sizes.items()
        if ABLATION_SIZE.get(name, count) != count
    ]
    parts = [
        f"Us: {pairs} pairs each, {seeds}, on {', '.join(devices)}. {spread}",
        "Paper: Chairs after training there, the others after Chairs and Things.",
    ]
    if partial:
        parts.append(f"Not comparable, fewer pairs than the paper's: {', '.join(partial)}.")
    return " ".join(parts)


class Report(NamedTuple):
    """A study as a table, as numbers, and as files."""

    grid: Grid
    document: dict[str, Any]
    contents: dict[Path, bytes]
    """STUDY.md, .json, .svg and .png."""


def finished_variants(variants: Iterable[Variant], folder: Path) -> dict[Variant, VariantResult]:
    """Return the results of the variants that are trained; none at all is an error."""
    read = {variant: VariantFolder(folder, variant).read() for variant in variants}
    finished = {variant: result for variant, result in read.items() if result is not None}
    if not finished:
        raise InputError(
            f"{folder} holds no finished variant of this study, recipe, seed and number of "
            f"pairs; train them with the data of the recipe, such as `roots={{'rendered': PHOTOS}}`"
        )
    return finished


def small_files(variants: Iterable[Variant], folder: Path) -> dict[Path, bytes]:
    """Return the weights of the first seed of each variant as dot-product.safetensors and so on."""
    files: dict[Path, bytes] = {}
    for variant in variants:
        weights = VariantFolder(folder, variant).run.weights
        name = variant.name.lower().replace(" ", "-")
        if weights.exists():
            files.setdefault(folder / f"{name}.safetensors", read_bytes(weights))
    return files


def report_study(study: str, finished: Mapping[Variant, VariantResult], folder: Path) -> Report:
    """Report on the variants of a study, those of several seeds together."""
    results: dict[str, list[VariantResult]] = {}
    for variant, result in finished.items():
        results.setdefault(variant.name, []).append(result)
    grid = ablation_grid(study, results)
    text, curves = f"{grid_markdown(grid)}\n", {}
    if any(result.curve for result in finished.values()):  # the paper's stages have no scenes
        text += f"\n![EPE on held-out scenes against the pairs seen]({study}.svg)\n"
        curves = {kind: ablation_plot(study, results, kind) for kind in ("svg", "png")}
    document = ablation_document(study, results)
    numbers = json.dumps(document, indent=1) + "\n"
    contents = {"md": text.encode(), "json": numbers.encode(), **curves}
    files = {folder / f"{study}.{kind}": content for kind, content in contents.items()}
    return Report(grid, document, files)
