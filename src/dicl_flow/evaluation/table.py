"""Writes results as tables for the terminal, as Markdown and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from .metrics import METRICS, sparsification_curves
from .published import FULL_SIZE, PublishedRow, relevant_columns, relevant_rows, values_by_data
from .score import Result

_GROUPS = {
    "End-point errors": ("epe", "epe_images", "over_1px", "over_3px", "over_5px", "fl_all", "wauc"),
    "By speed, visibility and confidence": (
        *("s0_10", "s10_40", "s40_plus", "matched", "unmatched", "ause"),
    ),
    "Without truth: grey levels, not EPE": ("warping_error", "warping_error_still"),
}
_NOT_IN_PAPER = "*"
_TEXT_WIDTH = 13  # a longer word in a column of text, such as a path, may be broken


class Grid(NamedTuple):
    """A table, ready to print: two columns of text, the others numbers."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    note: str = ""


def print_results(results: Sequence[Result], console: Console) -> None:
    """Print the tables."""
    for grid in _grids(results):
        print_grid(grid, console)


def print_grid(grid: Grid, console: Console) -> None:
    """Print one table."""
    table = Table(title=grid.title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    widths = _least_widths(grid, console.width)
    if _total(widths) > console.width:
        table.width = _total(widths)  # lines that the terminal breaks, rather than a lost column
    for column, (heading, width) in enumerate(zip(grid.headings, widths, strict=True)):
        if column < 2:
            table.add_column(heading, min_width=width, overflow="fold")
        else:
            table.add_column(heading, justify="right", width=width)
    for row in grid.rows:
        table.add_row(*row)
    console.print(table, highlight=False, crop=False)
    console.print(f"{grid.note}\n" if grid.note else "", style="dim", highlight=False)


def _least_widths(grid: Grid, room: int) -> list[int]:
    """Return the width of each column, broken at spaces only; numbers whole if there is room."""
    columns = list(zip(grid.headings, *grid.rows, strict=True))
    broken = [max(map(len, " ".join(column).split())) for column in columns]
    broken[:2] = [min(width, _TEXT_WIDTH) for width in broken[:2]]
    cells = [max(map(len, column[1:]), default=0) for column in columns[2:]]
    whole = [*broken[:2], *map(max, broken[2:], cells)]
    return whole if _total(whole) <= room else broken


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * len(widths)


def to_markdown(results: Sequence[Result]) -> str:
    """Return the tables, and what their columns mean."""
    grids = _grids(results)
    headings = {heading for grid in grids for heading in grid.headings}
    legend = [f"- {m.heading}: {m.meaning}" for m in METRICS.values() if m.heading in headings]
    return "\n\n".join([*map(grid_markdown, grids), "\n".join(legend)]) + "\n"


def as_document(results: Sequence[Result], computed: Mapping[str, str]) -> dict[str, Any]:
    """Return all numbers: totals and pairs of each method, and the published rows."""
    columns = relevant_columns(result.data for result in results)
    return {
        "results": [_result_json(result) for result in results],
        "published": [_published_json(row, columns) for row in relevant_rows(columns)],
        "computed": dict(computed),
        "metrics": {name: metric.meaning for name, metric in METRICS.items()},
    }


def _grids(results: Sequence[Result]) -> list[Grid]:
    grids = [_group_grid(results, title, names) for title, names in _GROUPS.items()]
    return [grid for grid in (*grids, _published_grid(results)) if grid.rows]


def _group_grid(results: Sequence[Result], title: str, names: Sequence[str]) -> Grid:
    rows = []
    for result in results:
        values = result.total.values
        if any(name in values for name in names):
            cells = [format_metric(name, values.get(name)) for name in names]
            rows.append([f"{result.label}, {len(result.scores)}", result.method, *cells])
    return Grid(
        title, ["data set, pairs", "method", *(METRICS[name].heading for name in names)], rows
    )


def _published_grid(results: Sequence[Result]) -> Grid:
    labels = {result.data: result.label for result in results}
    columns = relevant_columns(labels)
    ours: dict[str, dict[str, dict[str, float]]] = {}  # by method, data set and metric
    for result in results:
        ours.setdefault(result.method, {})[result.data] = result.total.values
    rows = [
        [
            method,
            "",
            *(format_metric(metric, totals.get(data, {}).get(metric)) for data, metric in columns),
        ]
        for method, totals in ours.items()
    ]
    rows += [_published_cells(row, columns) for row in relevant_rows(columns)]
    headings = [f"{labels[data]} {METRICS[metric].heading}" for data, metric in columns]
    return Grid(
        "Compared with published results",
        ["method", "trained on", *headings],
        rows if columns else [],
        _note(results),
    )


def _published_cells(row: PublishedRow, columns: Sequence[tuple[str, str]]) -> list[str]:
    template = "({})" if row.on_training_data else "{}"
    cells = [format_metric(metric, row.value(data, metric), template) for data, metric in columns]
    return [row.method + ("" if row.in_paper else _NOT_IN_PAPER), row.training, *cells]


def partial_notes(results: Sequence[Result]) -> list[str]:
    """Say which data sets lack pairs or pixels that the published numbers count."""
    sizes = {result.data: (result.label, len(result.scores)) for result in results}
    partial = [
        f"{label} here has {count} of the {FULL_SIZE[data]} pairs: not comparable."
        for data, (label, count) in sizes.items()
        if FULL_SIZE.get(data, count) != count
    ]
    masked = [
        f"{label} here leaves out invalid pixels of {masked} pairs: not comparable."
        for label, masked in {result.label: result.num_masked for result in results}.items()
        if masked
    ]
    return [*partial, *masked]


def _note(results: Sequence[Result]) -> str:
    meaning = (
        "C: FlyingChairs, T: FlyingThings3D, +K/S: and KITTI or Sintel. (…): measured on the "
        f"method's own training data. {_NOT_IN_PAPER}: not in the paper's tables."
    )
    return " ".join([*partial_notes(results), meaning])


def format_metric(metric: str, value: float | None, template: str = "{}") -> str:
    """Return a number with the digits of its metric; nothing for None."""
    return "" if value is None else template.format(f"{value:.{METRICS[metric].digits}f}")


def grid_markdown(grid: Grid) -> str:
    """Return one table as Markdown."""
    rulers = ["---", "---", *["---:"] * (len(grid.headings) - 2)]
    lines = [f"| {' | '.join(cells)} |" for cells in (grid.headings, rulers, *grid.rows)]
    return "\n".join([f"### {grid.title}", "", *lines, *(["", grid.note] if grid.note else [])])


def _result_json(result: Result) -> dict[str, Any]:
    return {
        "data": result.data,
        "label": result.label,
        "method": result.method,
        "num_pairs": len(result.scores),
        "num_masked": result.num_masked,
        "metrics": result.total.values,
        "sparsification": sparsification_curves(result.total),
        "pairs": {name: score.values for name, score in result.scores.items()},
    }


def _published_json(row: PublishedRow, columns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {
        "method": row.method,
        "training": row.training,
        "source": row.source,
        "in_paper": row.in_paper,
        "on_training_data": row.on_training_data,
        "metrics": values_by_data(columns, row.value),
        "all": {key: value for key, value in row._asdict().items() if isinstance(value, float)},
    }
