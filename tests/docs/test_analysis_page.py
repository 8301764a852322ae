"""The numbers of docs/analysis.md are those of the JSON files that it names."""

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "analysis.md").read_text()
MOTIONS = {"epe": "all pixels", "s0_10": "up to 10", "s10_40": "10 to 40", "s40_plus": "40 px and"}


def load(name):
    return json.loads((DOCS / "analysis" / f"{name}.json").read_text())


def row(start):
    """The numbers of the row of a table that starts so."""
    (cells,) = re.findall(rf"^\| {re.escape(start)}[^|]*\|(.*)\|$", PAGE, re.MULTILINE)
    return [float(number) for number in re.findall(r"[-\d.]+", cells.replace("−", "-"))]


@pytest.mark.parametrize("stride", [4, 8, 16, 32, 64])
def test_kernels(stride):
    found = load("kernels")["levels"][f"stride {stride}"]
    own, near, near_share, far, far_share = row(f"{stride} ")
    means = (found["own_mean"], found["near_mean"], found["far_mean"])
    assert (own, near, far) == pytest.approx(means, abs=5.1e-4)
    shares = (100 * found["near_positive_share"], 100 * found["far_negative_share"])
    assert (near_share, far_share) == pytest.approx(shares, abs=0.51)


@pytest.mark.parametrize("key", MOTIONS)
def test_levels(key):
    found = load("levels")["found"]["rendered"]
    names = ["zero flow", *(f"stride {stride} refined" for stride in (64, 32, 16, 8, 4))]
    assert row(MOTIONS[key]) == pytest.approx([found[name][key] for name in names], abs=0.051)


def test_peaks():
    found = load("peaks")["found"]
    before, after = found["rendered, before DAP"], found["rendered, after DAP"]
    text = " ".join(PAGE.split())
    assert f"from {before['median_d_peak']:.2f} to {after['median_d_peak']:.2f}" in text
    for key in ("epe_soft_argmin", "epe_winner_takes_all"):
        assert f"{before[key]:.2f} → {after[key]:.2f} px" in text


def test_no_file_names_a_folder_of_somebody():
    for path in DOCS.glob("analysis/*.json"):
        assert '"/' not in path.read_text()
