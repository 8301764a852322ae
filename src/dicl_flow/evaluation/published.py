"""Published results to compare with: the paper's tables 2 to 4, and some later methods."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

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


def _elsewhere(
    method: str, training: str, source: str, *train: float, chairs: float | None = None
) -> PublishedRow:
    """Return a row of another table, with KITTI-15 EPE and Fl-all, Sintel clean and final."""
    kitti, fl_all, clean, final = train or [None] * 4
    return PublishedRow(
        method,
        training,
        kitti15_epe=kitti,
        kitti15_fl_all=fl_all,
        sintel_clean_epe=clean,
        sintel_final_epe=final,
        chairs_epe=chairs,
        source=source,
    )


_: None = None  # the dash of the table
_TABLE_2 = (
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
)
PUBLISHED = (
    *_TABLE_2,
    _elsewhere("DICL without DAP", CHAIRS, TABLE_3, chairs=1.33),
    _elsewhere("PWC-Net", CHAIRS, TABLE_4, chairs=2.00),
    _elsewhere("PWC-Net + DICL", CHAIRS, TABLE_4, chairs=1.83),
    _elsewhere("VCN", CHAIRS, TABLE_4, chairs=1.66),
    _elsewhere("VCN + DICL", CHAIRS, TABLE_4, chairs=1.45),
    _elsewhere("DICL, re-measured", SYNTHETIC, PTLFLOW, 9.661, 23.718, 1.967, 3.731),
    _elsewhere("RAFT-small", SYNTHETIC, "Teed and Deng 2020", 7.51, 26.9, 2.21, 3.35),
    _elsewhere("RAFT", SYNTHETIC, "Teed and Deng 2020", 5.04, 17.4, 1.43, 2.71),
    _elsewhere("GMA", SYNTHETIC, "Jiang et al. 2021", 4.69, 17.1, 1.30, 2.74),
    _elsewhere("SEA-RAFT(L)", SYNTHETIC, "Wang et al. 2024", 3.62, 12.9, 1.19, 4.11),
    _elsewhere("FlowFormer++", SYNTHETIC, "Shi et al. 2023", 3.93, 14.1, 0.90, 2.30),
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


PUBLISHED_PEAKS = {"without DAP": 0.57, "with DAP": 0.63}
"""The paper's medians of d_peak on Sintel."""


def relevant_columns(data_sets: Iterable[str]) -> list[tuple[str, str]]:
    """Return the columns of `PUBLISHED_COLUMNS` that belong to the given data sets."""
    wanted = set(data_sets)
    return [column for column in PUBLISHED_COLUMNS if column[0] in wanted]


def values_by_data(
    columns: Iterable[tuple[str, str]], value: Value
) -> dict[str, dict[str, float | None]]:
    """Return the numbers of a row by data set and metric."""
    values: dict[str, dict[str, float | None]] = {}
    for data, metric in columns:
        values.setdefault(data, {})[metric] = value(data, metric)
    return values


def relevant_rows(columns: Sequence[tuple[str, str]]) -> list[PublishedRow]:
    """Return the rows that have a number in one of the columns."""
    return [row for row in PUBLISHED if any(row.value(*column) is not None for column in columns)]
