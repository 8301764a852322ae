"""What all campaigns share: their options, the counts of their parts, and the report.

    python -m campaigns.NAME --count N --seed S -o report.json

A campaign is a function from `Options` to its parts, each a `Part`, by name:

    if __name__ == "__main__":
        main("kills", __doc__, run, count=50)

The exit code is 1 if something failed. The report is small: of each part the counts, and the
first failures.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

REPOSITORY = Path(__file__).parents[1]
_SHOWN = 10  # failures of a part, in the report


@dataclass(frozen=True)
class Options:
    """What the command line of every campaign has."""

    count: int | None
    """How often each part is tried; None: as often as the campaign says."""
    seed: int
    only: tuple[str, ...] = ()
    """Names of parts; all of them if there is none."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Options of this campaign alone."""

    def wants(self, part: str) -> bool:
        """Whether a part is asked for."""
        return not self.only or part in self.only

    def dice(self, *words: object) -> Random:
        """Return random numbers that depend on the seed and on `words` only."""
        return Random(" ".join(map(str, (self.seed, *words))))


@dataclass
class Part:
    """What was tried with one format, command or writer, and what became of it."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """How often each allowed outcome was seen, such as "refused"."""
    failures: list[str] = field(default_factory=list)
    """One line for each broken promise, with what is needed to repeat it."""
    known: Counter[str] = field(default_factory=Counter)
    """Failures that are listed as open, by their kind."""
    measured: dict[str, Any] = field(default_factory=dict)
    """Numbers, such as the largest memory."""

    @property
    def tried(self) -> int:
        """How often something was tried."""
        return self.outcomes.total() + len(self.failures) + self.known.total()

    def summary(self) -> dict[str, Any]:
        """Return the entry of the report."""
        return {
            "tried": self.tried,
            "failed": len(self.failures),
            "open": dict(sorted(self.known.items())),
            "outcomes": dict(sorted(self.outcomes.items())),
            **self.measured,
            "failures": self.failures[:_SHOWN],
        }


def main(
    name: str,
    about: str | None,
    run: Callable[[Options], Mapping[str, Part]],
    *,
    count: int | None = None,
    more: Mapping[str, str] | None = None,
) -> None:
    """Run a campaign with the options of the command line, print and write its report.

    `more` are options of this campaign alone, with their defaults.
    """
    output, options = _parse(name, about, count, more or {})
    words = [Path(word).name if word == str(output) else word for word in sys.argv[1:]]
    started, where = time.monotonic(), describe()  # the commit that is run, not a later one
    parts = run(options)
    report = {
        "campaign": name,
        "command": shlex.join(["python", "-m", f"campaigns.{name}", *words]),
        "seed": options.seed,
        **where,
        "seconds": round(time.monotonic() - started),
        "parts": {part: found.summary() for part, found in parts.items()},
    }
    _print(parts)
    if output is not None:
        output.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(any(part.failures for part in parts.values()))


def describe() -> dict[str, str]:
    """Return date, commit, machine and versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB",
        "system": platform.system(),
        "python": platform.python_version(),
        **{library: version(library) for library in ("torch", "numpy")},
    }


def _commit() -> str:
    git = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # a copy without its history
        return "unknown"


def _parse(
    name: str, about: str | None, count: int | None, more: Mapping[str, str]
) -> tuple[Path | None, Options]:
    parser = argparse.ArgumentParser(
        prog=f"python -m campaigns.{name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=count, help="how often each part is tried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="PART,…", help="only these parts")
    parser.add_argument("-o", "--output", type=Path, metavar="REPORT.json")
    for option, default in more.items():
        parser.add_argument(option, default=default, help=f"default: {default}")
    given = parser.parse_args()
    only = tuple(part for part in given.only.split(",") if part)
    chosen = {option: getattr(given, option.removeprefix("--")) for option in more}
    return given.output, Options(given.count, given.seed, only, chosen)


def _print(parts: Mapping[str, Part]) -> None:
    for name, part in parts.items():
        outcomes = ", ".join(f"{many:,} {kind}" for kind, many in sorted(part.outcomes.items()))
        still = f", {part.known.total():,} known to fail" if part.known else ""
        print(f"{name}: {part.tried:,} tried, {len(part.failures):,} failed{still} ({outcomes})")
        for key, value in part.measured.items():
            print(f"  {key:26} {value}")
        for line in part.failures[:_SHOWN]:
            print(f"  {line}")
