"""Tables for terminal, Markdown and JSON: results beside those of the paper and later methods."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from rich.console import Console
from rich.table import Table

from ..errors import counted
from .metrics import METRICS, SPRING_METRICS, Result, sparsification_curves

FULL_SIZE = {"chairs:val": 640, "kitti15": 200, "sintel-clean": 1041, "sintel-final": 1041}
"""By data set: the number of pairs that the published numbers are measured on."""
PUBLISHED_COLUMNS = {
    ("chairs:val", "epe"): "chairs_epe",
    ("kitti15", "epe_images"): "kitti15_epe",  # KITTI's benchmark averages images, not pixels
    ("kitti15", "fl_all"): "kitti15_fl_all",
    ("sintel-clean", "epe"): "sintel_clean_epe",
    ("sintel-final", "epe"): "sintel_final_epe",
}
"""(data set, metric) by our names for them -> the field of `PublishedRow` to compare with."""
Value: TypeAlias = Callable[[str, str], float | None]
"""Data set and metric of a column -> the number of a row; None: empty."""
CHAIRS = "C"  # FlyingChairs
SYNTHETIC = "C+T"  # then FlyingThings3D
FINE_TUNED = "+K/S"  # then KITTI or Sintel, whichever is tested
TABLE_2 = "table 2 of the paper"
TABLE_3 = "table 3 of the paper"
TABLE_4 = "table 4 of the paper"
PTLFLOW = "PTLFlow, metrics_all_things.csv: the released weights"
RAFT = "Teed and Deng 2020"


class PublishedRow(NamedTuple):
    """One row of a table, in the order of the paper's table 2; None where nothing was published.

    Times are seconds on an NVIDIA GTX 1080 Ti. "Test" columns come from the benchmarks' servers.
    """

    method: str
    training: str
    seconds: float | None = None
    kitti15_epe: float | None = None
    kitti15_fl_all: float | None = None
    kitti15_test_fl_all: float | None = None
    sintel_clean_epe: float | None = None
    sintel_final_epe: float | None = None
    sintel_test_clean_epe: float | None = None
    sintel_test_final_epe: float | None = None
    chairs_epe: float | None = None
    """On the validation split, after training on the training split."""
    source: str = TABLE_2

    @property
    def in_paper(self) -> bool:
        """Whether the row is from a table of the DICL paper."""
        return self.source in (TABLE_2, TABLE_3, TABLE_4)

    @property
    def on_training_data(self) -> bool:
        """Whether the network was trained on these pairs; in brackets in the paper."""
        return self.training == FINE_TUNED

    def value(self, data: str, metric: str) -> float | None:
        """Return the published number of a column of `PUBLISHED_COLUMNS`."""
        return getattr(self, PUBLISHED_COLUMNS[data, metric])


_: None = None  # the dash of the table
PUBLISHED = (
    PublishedRow("EpicFlow", "", 15.00, _, _, 26.29, _, _, 4.12, 6.29),
    PublishedRow("DCFlow", "", 8.60, _, 15.1, 14.86, _, _, 3.54, 5.12),
    PublishedRow("FlowNet2", SYNTHETIC, 0.12, 10.08, 30.0, _, 2.02, 3.54, 3.96, 6.02),
    PublishedRow("PWC-Net", SYNTHETIC, 0.03, 10.35, 33.7, _, 2.55, 3.93),
    PublishedRow("LiteFlowNet", SYNTHETIC, 0.09, 10.39, 28.5, _, 2.48, 4.04),
    PublishedRow("LiteFlowNet2", SYNTHETIC, 0.04, 8.97, 25.9, _, 2.24, 3.78),
    PublishedRow("HD3F", SYNTHETIC, 0.08, 13.17, 24.0, _, 3.84, 8.77),
    PublishedRow("VCN", SYNTHETIC, 0.18, 8.36, 25.1, _, 2.21, 3.62),
    PublishedRow("DICL without DAP", SYNTHETIC, 0.08, 8.78, 23.8, _, 2.11, 3.85),
    PublishedRow("DICL", SYNTHETIC, 0.08, 8.70, 23.6, _, 1.94, 3.77),
    PublishedRow("FlowNet2", FINE_TUNED, 0.12, 2.30, 8.6, 11.48, 1.45, 2.01, 4.16, 5.74),
    PublishedRow("PWC-Net+", FINE_TUNED, 0.03, 1.50, 5.3, 7.72, 1.71, 2.34, 3.45, 4.60),
    PublishedRow("LiteFlowNet", FINE_TUNED, 0.09, 1.62, 5.6, 9.38, 1.35, 1.78, 4.54, 5.38),
    PublishedRow("LiteFlowNet2", FINE_TUNED, 0.04, 1.47, 4.8, 7.74, 1.30, 1.62, 3.45, 4.90),
    PublishedRow("IRR-PWC", FINE_TUNED, 0.21, 1.63, 5.3, 7.65, 1.92, 2.51, 3.84, 4.58),
    PublishedRow("HD3F", FINE_TUNED, 0.08, 1.31, 4.1, 6.55, 1.87, 1.17, 4.79, 4.67),
    PublishedRow("SelFlow", FINE_TUNED, 0.09, 1.18, _, 8.42, 1.68, 1.77, 3.74, 4.26),
    PublishedRow("VCN", FINE_TUNED, 0.18, 1.16, 4.1, 6.30, 1.66, 2.24, 2.81, 4.40),
    PublishedRow("DICL without DAP", FINE_TUNED, 0.08, 1.09, 3.8, _, 1.30, 1.72),
    PublishedRow("DICL", FINE_TUNED, 0.08, 1.02, 3.6, 6.31, 1.11, 1.60, 2.12, 3.44),
    PublishedRow("DICL without DAP", CHAIRS, chairs_epe=1.33, source=TABLE_3),
    PublishedRow("PWC-Net", CHAIRS, chairs_epe=2.00, source=TABLE_4),
    PublishedRow("PWC-Net + DICL", CHAIRS, chairs_epe=1.83, source=TABLE_4),
    PublishedRow("VCN", CHAIRS, chairs_epe=1.66, source=TABLE_4),
    PublishedRow("VCN + DICL", CHAIRS, chairs_epe=1.45, source=TABLE_4),
    PublishedRow("DICL, re-measured", SYNTHETIC, _, 9.661, 23.718, _, 1.967, 3.731, source=PTLFLOW),
    PublishedRow("RAFT-small", SYNTHETIC, _, 7.51, 26.9, _, 2.21, 3.35, source=RAFT),
    PublishedRow("RAFT", SYNTHETIC, _, 5.04, 17.4, _, 1.43, 2.71, source=RAFT),
    PublishedRow("GMA", SYNTHETIC, _, 4.69, 17.1, _, 1.30, 2.74, source="Jiang et al. 2021"),
    PublishedRow("SEA-RAFT(L)", SYNTHETIC, _, 3.62, 12.9, _, 1.19, 4.11, source="Wang et al. 2024"),
    PublishedRow("FlowFormer++", SYNTHETIC, _, 3.93, 14.1, _, 0.90, 2.30, source="Shi et al. 2023"),
)


ABLATION_SIZE = {"chairs:all": 640, **FULL_SIZE}
"""The number of pairs that the ablations are measured on; of Chairs, its validation split."""
ABLATION_COLUMNS = {("chairs:all", "epe"): "chairs_epe", **PUBLISHED_COLUMNS}
"""(data set, metric) by our names for them -> the field of `AblationRow` to compare with."""


class AblationRow(NamedTuple):
    """One variant of the paper's ablations, tables 2 (C+T), 3 and 4; None: not published.

    Chairs: trained and tested on its splits. The others: trained on Chairs, then on Things.
    """

    study: str
    variant: str
    chairs_epe: float | None
    kitti15_epe: float | None = None
    kitti15_fl_all: float | None = None
    sintel_clean_epe: float | None = None
    sintel_final_epe: float | None = None

    def value(self, data: str, metric: str) -> float | None:
        """Return the published number of a column; None: not published."""
        field = ABLATION_COLUMNS.get((data, metric))
        return None if field is None else getattr(self, field)


PUBLISHED_ABLATIONS = (
    AblationRow("metrics", "dot product", 1.86, 10.39, 31.1, 2.57, 4.06),
    AblationRow("metrics", "cosine", 1.84, 10.45, 30.2, 2.55, 4.03),
    AblationRow("metrics", "MLP", 1.76, 9.83, 28.9, 2.45, 3.98),
    AblationRow("metrics", "reduced DICL", 1.72, 9.77, 28.3, 2.42, 3.99),
    AblationRow("metrics", "DICL", 1.33, 8.78, 23.8, 2.11, 3.85),
    AblationRow("projection", "DICL without DAP", 1.33, 8.78, 23.8, 2.11, 3.85),
    AblationRow("projection", "DICL", None, 8.70, 23.6, 1.94, 3.77),
    AblationRow("hosts", "PWC-Net", 2.00),
    AblationRow("hosts", "PWC-Net + DICL", 1.83),
    AblationRow("hosts", "VCN", 1.66),
    AblationRow("hosts", "VCN + DICL", 1.45),
)


def published_ablation(study: str) -> list[AblationRow]:
    """The paper's rows of a study; those of "claims" are of two."""
    if study != "claims":
        return [row for row in PUBLISHED_ABLATIONS if row.study == study]
    with_projection = next(row for row in published_ablation("projection") if row.variant == "DICL")
    return [*published_ablation("metrics"), with_projection._replace(variant="DICL with DAP")]


PUBLISHED_PEAKS = {"without DAP": 0.57, "with DAP": 0.63}
"""The paper's medians of d_peak on Sintel."""


def relevant_columns(data_sets: Collection[str]) -> list[tuple[str, str]]:
    """The columns of `PUBLISHED_COLUMNS` that belong to the given data sets."""
    return [column for column in PUBLISHED_COLUMNS if column[0] in data_sets]


def values_by_data(
    columns: Sequence[tuple[str, str]], value: Value
) -> dict[str, dict[str, float | None]]:
    """Return the numbers of a row by data set and metric."""
    return {data: {m: value(d, m) for d, m in columns if d == data} for data, _ in columns}


def relevant_rows(columns: Sequence[tuple[str, str]]) -> list[PublishedRow]:
    """Return the rows that have a number in one of the columns."""
    return [row for row in PUBLISHED if any(row.value(*column) is not None for column in columns)]


_GROUPS = {
    "End-point errors": ("epe", "epe_images", "over_1px", "over_3px", "over_5px", "fl_all", "wauc"),
    "By speed, visibility and confidence": (
        *("s0_10", "s10_40", "s40_plus", "matched", "unmatched", "ause"),
    ),
    "By region, as Spring's benchmark": SPRING_METRICS,
    "Without truth: grey levels, not EPE": ("warping_error", "warping_error_still"),
}
_NOT_IN_PAPER = "*"
_MEANING = (
    "C: FlyingChairs, T: FlyingThings3D, +K/S: and KITTI or Sintel. (…): measured on the "
    f"method's own training data. {_NOT_IN_PAPER}: not in the paper's tables."
)
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
    columns = relevant_columns({result.data for result in results})
    return {
        "results": [
            {
                "data": result.data,
                "label": result.label,
                "method": result.method,
                "num_pairs": len(result.scores),
                "num_masked": result.num_masked,
                "metrics": result.total.values,
                "sparsification": sparsification_curves(result.total),
                "pairs": {name: score.values for name, score in result.scores.items()},
            }
            for result in results
        ],
        "published": [
            {
                "method": row.method,
                "training": row.training,
                "source": row.source,
                "in_paper": row.in_paper,
                "on_training_data": row.on_training_data,
                "metrics": values_by_data(columns, row.value),
                "all": {key: v for key, v in row._asdict().items() if isinstance(v, float)},
            }
            for row in relevant_rows(columns)
        ],
        "computed": dict(computed),
        "metrics": {name: metric.meaning for name, metric in METRICS.items()},
    }


def _grids(results: Sequence[Result]) -> list[Grid]:
    grids = [_group_grid(results, title, names) for title, names in _GROUPS.items()]
    return [grid for grid in (*grids, _published_grid(results)) if grid.rows]


def _group_grid(results: Sequence[Result], title: str, names: Sequence[str]) -> Grid:
    headings = ["data set, pairs", "method", *(METRICS[name].heading for name in names)]
    rows = []
    for result in results:
        values = result.total.values
        if any(name in values for name in names):
            cells = [format_metric(name, values.get(name)) for name in names]
            rows.append([f"{result.label}, {len(result.scores)}", result.method, *cells])
    return Grid(title, headings, rows)


def _published_grid(results: Sequence[Result]) -> Grid:
    labels = {result.data: result.label for result in results}
    columns = relevant_columns(labels)
    ours: dict[str, dict[str, dict[str, float]]] = {}  # by method, data set and metric
    for result in results:
        ours.setdefault(result.method, {})[result.data] = result.total.values
    rows = []
    for method, totals in ours.items():
        cells = [format_metric(m, totals.get(data, {}).get(m)) for data, m in columns]
        rows.append([method, "", *cells])
    for row in relevant_rows(columns):
        template = "({})" if row.on_training_data else "{}"
        cells = [
            format_metric(metric, row.value(data, metric), template) for data, metric in columns
        ]
        name = row.method + ("" if row.in_paper else _NOT_IN_PAPER)
        rows.append([name, row.training, *cells])
    headings = [f"{labels[data]} {METRICS[metric].heading}" for data, metric in columns]
    return Grid(
        "Compared with published results",
        ["method", "trained on", *headings],
        rows if columns else [],
        " ".join([*partial_notes(results), _MEANING]),
    )


def partial_notes(results: Sequence[Result]) -> list[str]:
    """Say which data sets lack pairs or pixels that the published numbers count."""
    sizes = {result.data: (result.label, len(result.scores)) for result in results}
    masked = {result.label: result.num_masked for result in results if result.num_masked}
    notes = [
        f"{label} here has {count} of the {FULL_SIZE[data]} pairs"
        for data, (label, count) in sizes.items()
        if FULL_SIZE.get(data, count) != count
    ]
    notes += [
        f"{label} here leaves out invalid pixels of {counted(n, 'pair')}"
        for label, n in masked.items()
    ]
    return [f"{note}: not comparable." for note in notes]


def format_metric(metric: str, value: float | None, template: str = "{}") -> str:
    """Return a number with the digits of its metric; nothing for None."""
    return "" if value is None else template.format(f"{value:.{METRICS[metric].digits}f}")


def grid_markdown(grid: Grid) -> str:
    """Return one table as Markdown."""
    rulers = ["---", "---", *["---:"] * (len(grid.headings) - 2)]
    lines = [f"| {' | '.join(cells)} |" for cells in (grid.headings, rulers, *grid.rows)]
    return "\n".join([f"### {grid.title}", "", *lines, *(["", grid.note] if grid.note else [])])
