"""Published results on the training splits of Sintel and KITTI 2015, to print beside ours."""

from collections.abc import Iterable
from typing import NamedTuple

FULL_SIZE = {"kitti15": 200, "sintel-clean": 1041, "sintel-final": 1041}
"""How many pairs the published numbers are measured on, by data set."""

PUBLISHED_COLUMNS = {
    ("kitti15", "epe_images"): "kitti15_epe",  # the field averages images there, not pixels
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
        """The network has seen these very pairs; the paper sets such numbers in parentheses."""
        return self.training == FINE_TUNED

    def value(self, data: str, metric: str) -> float | None:
        """The published number of a column of `PUBLISHED_COLUMNS`."""
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


def relevant_columns(data_sets: Iterable[str]) -> list[tuple[str, str]]:
    """The columns of `PUBLISHED_COLUMNS` that belong to the given data sets."""
    wanted = set(data_sets)
    return [column for column in PUBLISHED_COLUMNS if column[0] in wanted]
