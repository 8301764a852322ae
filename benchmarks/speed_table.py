"""Write the stored results into the README's speed table: python benchmarks/speed_table.py."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARKS = "<!-- speed: benchmarks/speed_table.py -->", "<!-- /speed -->"
HEAD = """\
| machine | frames | path | ms | GiB | times plain | mean px from plain |
|---|---|---|---|---|---|---|
"""


def row(machine: str, host: str, result: dict) -> str:
    batch = f", {result['batch']} pairs" if result["batch"] > 1 else ""
    memory = result["peak_bytes"] and f"{result['peak_bytes'] / 2**30:.2f}"
    ratio = f"{result['ratio']:.1f}" if result["ratio"] else ""
    apart = "" if result["mean_difference"] is None else f"{result['mean_difference']:.1g}"
    cells = (
        *(machine, f"{result['width']}x{result['height']}{batch}"),
        f"{'' if host == 'dicl' else f'{host}, '}{result['backend']} {result['precision']}",
        *(milliseconds(1000 * result["seconds"]), memory or "", ratio, apart),
    )
    return f"| {' | '.join(cells)} |\n"


def milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table() -> str:
    """The rows of all files, and a line that says how each was made."""
    text, lines = HEAD, []
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        report = json.loads(path.read_text())
        machine, host = report["device"], report["host"]
        text += "".join(row(machine, host, result) for result in report["results"])
        made = f"`{report['command']}`, torch {report['torch']}, {report['date']}"
        lines.append(f"{machine}: {made}")
    return f"{text}\n<sub>{'. '.join(lines)}.</sub>\n"


def insert(readme: str) -> str:
    before, _, rest = readme.partition(MARKS[0])
    return f"{before}{MARKS[0]}\n{table()}{MARKS[1]}{rest.partition(MARKS[1])[2]}"


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(insert(path.read_text()))
