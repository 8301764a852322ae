"""Write the speed tables of the documentation from benchmarks/results/*.json."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARKS = "<!-- speed: benchmarks/speed_table.py -->", "<!-- /speed -->"
SHORT_SIZE = 1024, 436  # the README shows one pair of this size


def column(host: str, result: dict) -> str:
    """Return what was timed, as the head of a column."""
    name = f"{result['backend']} {result['precision']}".removesuffix(" uint8")
    return name if host == "dicl" else f"{host}, {name}"


def cell(result: dict) -> str:
    """Return milliseconds and GiB."""
    memory = result["peak_bytes"] and f" ({result['peak_bytes'] / 2**30:.2f})"
    return milliseconds(1000 * result["seconds"]) + (memory or "")


def frames(result: dict) -> str:
    batch = f", {result['batch']} pairs" if result["batch"] > 1 else ""
    return f"{result['width']}x{result['height']}{batch}"


def table(head: str, rows: dict[str, dict[str, str]]) -> str:
    """Return the lines of a table: by row and column, its cells."""
    heads = list(dict.fromkeys(name for cells in rows.values() for name in cells))
    lines = [[head, *heads], ["---"] * (len(heads) + 1)]
    lines += [[name, *(cells.get(one, "") for one in heads)] for name, cells in rows.items()]
    text = ("|" + "|".join(f" {c} " if c else " " for c in line) + "|\n" for line in lines)
    return "".join(text).replace(" --- ", "---")


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
    """A table for each file of results, below the command that made it.

    docs/architecture.md has the other hosts.
    """
    return "\n".join(section(one) for one in reports() if one["host"] == "dicl")


def section(report: dict) -> str:
    rows: dict[str, dict[str, str]] = {}
    for one in report["results"]:
        if one["backend"] != "compiled":  # docs/decisions/0010 has these
            rows.setdefault(frames(one), {})[column(report["host"], one)] = cell(one)
    command = re.sub(r" (--path|-o|--plot) \S+", "", report["command"])  # the columns show them
    made = f"`{command}`, torch {report['torch']}, {report['date']}"
    return f"**{report['device']}** ({made}):\n\n{table('frames', rows)}"


def short_table() -> str:
    """One size, one pair, the published network on a machine that does nothing else."""
    rows: dict[str, dict[str, str]] = {}
    for report in reports():
        if report["host"] != "dicl" or "note" in report:
            continue
        for one in report["results"]:
            size = one["width"], one["height"], one["batch"]
            if size == (*SHORT_SIZE, 1) and one["backend"] != "compiled":
                rows.setdefault(report["device"], {})[column("dicl", one)] = cell(one)
    return table("ms (GiB)", rows)


TABLES = {"README.md": short_table, "docs/measurements/speed.md": full_table}


def insert(text: str, table: str) -> str:
    """Replace the text between the marks."""
    before, _, rest = text.partition(MARKS[0])
    return f"{before}{MARKS[0]}\n{table}{MARKS[1]}{rest.partition(MARKS[1])[2]}"


if __name__ == "__main__":
    for name, make in TABLES.items():
        page = ROOT / name
        page.write_text(insert(page.read_text(), make()))
