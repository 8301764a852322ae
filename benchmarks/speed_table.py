"""Write the speed tables of the documentation from benchmarks/results/*.json."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARKS = "<!-- speed: benchmarks/speed_table.py -->", "<!-- /speed -->"
HEAD = """\
| machine | frames | path | ms | GiB | times plain | mean px from plain |
|---|---|---|---|---|---|---|
"""
SHORT_SIZE = 1024, 436  # the README shows one pair of this size


def row(device: str, host: str, result: dict) -> str:
    batch = f", {result['batch']} pairs" if result["batch"] > 1 else ""
    memory = result["peak_bytes"] and f"{result['peak_bytes'] / 2**30:.2f}"
    ratio = f"{result['ratio']:.1f}" if result["ratio"] else ""
    apart = "" if result["mean_difference"] is None else f"{result['mean_difference']:.1g}"
    cells = (
        *(device, f"{result['width']}x{result['height']}{batch}"),
        f"{'' if host == 'dicl' else f'{host}, '}{result['backend']} {result['precision']}",
        *(milliseconds(1000 * result["seconds"]), memory or "", ratio, apart),
    )
    return f"| {' | '.join(cells)} |\n"


def milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def reports() -> list[dict]:
    """The stored results, with short names of the machines.

    A `note`, which is written by hand, says what else the machine was doing.
    """
    paths = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    found = [json.loads(path.read_text()) for path in paths]
    timed = [one for one in found if "results" in one]  # others: `dicl-flow bench --first`
    return [{**one, "device": machine(one)} for one in timed]


def machine(report: dict) -> str:
    name = re.sub(r"\(R\)| Processor", "", report["device"])
    return f"{name}, {report['note']}" if "note" in report else name


def full_table() -> str:
    """All rows, and a line per file that says how it was measured."""
    rows = (row(one["device"], one["host"], each) for one in reports() for each in one["results"])
    lines = (
        f"- {one['device']}: `{one['command']}`, torch {one['torch']}, {one['date']}\n"
        for one in reports()
    )
    return f"{HEAD}{''.join(rows)}\nMeasured with:\n\n{''.join(lines)}"


def short_table() -> str:
    """One size, one pair, the published network on a machine that does nothing else."""
    rows = (
        row(one["device"], "dicl", each)
        for one in reports()
        if one["host"] == "dicl" and "note" not in one
        for each in one["results"]
        if (each["width"], each["height"], each["batch"]) == (*SHORT_SIZE, 1)
        if each["backend"] != "compiled"  # measured, but not a backend
    )
    return HEAD + "".join(rows)


TABLES = {"README.md": short_table, "docs/speed.md": full_table}


def insert(text: str, table: str) -> str:
    """Replace the text between the marks."""
    before, _, rest = text.partition(MARKS[0])
    return f"{before}{MARKS[0]}\n{table}{MARKS[1]}{rest.partition(MARKS[1])[2]}"


if __name__ == "__main__":
    for name, table in TABLES.items():
        path = ROOT / name
        path.write_text(insert(path.read_text(), table()))
