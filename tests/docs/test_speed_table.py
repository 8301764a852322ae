"""The speed tables of the documentation show what the stored results say."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/measurements/speed.md"])
def test_the_table_is_made_of_the_stored_results(page):
    made = runpy.run_path(str(ROOT / "benchmarks" / "speed_table.py"))
    text, table = (ROOT / page).read_text(), made["TABLES"][page]()
    assert made["insert"](text, table) == text
    assert made["insert"](text.replace("| NVIDIA H200 |", "| another |"), table) == text
