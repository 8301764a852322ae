"""Published results to compare with: the paper's tables 2 to 4, and some later methods."""

from collections.abc import Iterable
from typing import NamedTuple

FULL_SIZE = {"kitti15": 200, "sintel-clean": 1041, "sintel-final": 1041}
"""By data set: the number of pairs that the published numbers are measured on."""

PUBLISHED_COLUMNS = {
    ("kitti15", "epe_images"): "kitti15_epe",  # KITTI's benchmark averages images, not pixels
    ("kitti15", "fl_all"): "kitti15_fl_all",
    ("sintel-clean", "epe"): "sintel_clean_epe",
    ("sintel-final", "epe"): "sintel_final_epe",
}
"""(data set, metric) by our names for them -> the field of `PublishedRow` to compare with."""

SYNTHETIC = "C+T"  # FlyingChairs, then FlyingThings3D
FINE_TUNED = "+K/S"  # then KITTI or Sintel, whichever is tested


class PublishedRow(NamedTuple):
    """One row of a table; None where nothing was published."""

    method: str
    training: str
    kitti15_epe: float | None
    kitti15_fl_all: float | None
    sintel_clean_epe: float | None
    sintel_final_epe: float | None
    in_paper: bool = True
    """A row of table 2 of the DICL paper."""

    @property
    def on_training_data(self) -> bool:
        """Whether the network was trained on these pairs; in brackets in the paper."""
        return self.training == FINE_TUNED

    def value(self, data: str, metric: str) -> float | None:
        """Return the published number of a column of `PUBLISHED_COLUMNS`."""
        return getattr(self, PUBLISHED_COLUMNS[data, metric])


PUBLISHED = (
    PublishedRow("FlowNet2", SYNTHETIC, 10.08, 30.0, 2.02, 3.54),
    PublishedRow("PWC-Net", SYNTHETIC, 10.35, 33.7, 2.55, 3.93),
    PublishedRow("LiteFlowNet", SYNTHETIC, 10.39, 28.5, 2.48, 4.04),
    PublishedRow("LiteFlowNet2", SYNTHETIC, 8.97, 25.9, 2.24, 3.78),
    PublishedRow("HD3F", SYNTHETIC, 13.17, 24.0, 3.84, 8.77),
    PublishedRow("VCN", SYNTHETIC, 8.36, 25.1, 2.21, 3.62),
    PublishedRow("DICL without DAP", SYNTHETIC, 8.78, 23.8, 2.11, 3.85),
    PublishedRow("DICL", SYNTHETIC, 8.70, 23.6, 1.94, 3.77),
    PublishedRow("FlowNet2", FINE_TUNED, 2.30, 8.6, 1.45, 2.01),
    PublishedRow("PWC-Net+", FINE_TUNED, 1.50, 5.3, 1.71, 2.34),
    PublishedRow("LiteFlowNet", FINE_TUNED, 1.62, 5.6, 1.35, 1.78),
    PublishedRow("LiteFlowNet2", FINE_TUNED, 1.47, 4.8, 1.30, 1.62),
    PublishedRow("IRR-PWC", FINE_TUNED, 1.63, 5.3, 1.92, 2.51),
    PublishedRow("HD3F", FINE_TUNED, 1.31, 4.1, 1.87, 1.17),
    PublishedRow("SelFlow", FINE_TUNED, 1.18, None, 1.68, 1.77),
    PublishedRow("VCN", FINE_TUNED, 1.16, 4.1, 1.66, 2.24),
    PublishedRow("DICL without DAP", FINE_TUNED, 1.09, 3.8, 1.30, 1.72),
    PublishedRow("DICL", FINE_TUNED, 1.02, 3.6, 1.11, 1.60),
    PublishedRow("DICL, re-measured", SYNTHETIC, 9.661, 23.72, 1.967, 3.731, in_paper=False),
    PublishedRow("RAFT-small", SYNTHETIC, 7.51, 26.9, 2.21, 3.35, in_paper=False),
    PublishedRow("RAFT", SYNTHETIC, 5.04, 17.4, 1.43, 2.71, in_paper=False),
    PublishedRow("GMA", SYNTHETIC, 4.69, 17.1, 1.30, 2.74, in_paper=False),
    PublishedRow("SEA-RAFT(L)", SYNTHETIC, 3.62, 12.9, 1.19, 4.11, in_paper=False),
    PublishedRow("FlowFormer++", SYNTHETIC, 3.93, 14.1, 0.90, 2.30, in_paper=False),
)


ABLATION_SIZE = {"chairs:val": 640, "chairs:all": 640, **FULL_SIZE}
"""The number of pairs that the ablations are measured on; of Chairs, its validation split."""

ABLATION_COLUMNS = {
    ("chairs:val", "epe"): "chairs_epe",
    ("chairs:all", "epe"): "chairs_epe",
    **PUBLISHED_COLUMNS,
}
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
