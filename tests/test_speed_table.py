"""The README's speed table is what the stored results say."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_table_is_made_of_the_stored_results():
    made = runpy.run_path(str(ROOT / "benchmarks" / "speed_table.py"))
    readme = (ROOT / "README.md").read_text()
    assert made["insert"](readme) == readme
    assert made["insert"](readme.replace("| NVIDIA H200 |", "| another |")) == readme
