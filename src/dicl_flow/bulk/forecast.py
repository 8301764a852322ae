"""What a run will cost, from a few pairs that are computed to try it."""

from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

from .folders import with_flows
from .job import Job
from .manifest import UNKNOWN_FLOWS, Row
from .segments import Plan, Segment
from .worker import Worker, run_segment

_TRIED = 3  # rows, and at most as many pairs of each
_OPENED = 20  # clips, to see how long they are


def forecast(job: Job, plan: Plan, device: str, devices: int) -> dict[str, Any]:
    """Return how many flows, bytes and hours it will be; nothing is written to the output."""
    flows = _expected_flows(job, plan)
    rows = [plan.manifest.rows(number, number + 1)[0] for number in _spread(len(plan.manifest))]
    segment = Segment("trial", 0, tuple(rows), 0)
    with TemporaryDirectory(prefix="dicl-flow-") as folder:
        worker = Worker(replace(job, out=folder), device, most=_TRIED)
        run_segment(worker, segment)  # compiles, and allocates memory
        outcome = run_segment(worker, segment, again=True)
    found: dict[str, Any] = {"segments": len(plan), "clips": len(plan.manifest), "flows": flows}
    marker = outcome.marker
    if marker is None or not marker["flows"]:
        return {**found, "problem": "none of the pairs that were tried can be computed"}
    seconds = outcome.seconds / marker["flows"]
    size = sum(marks["bytes"] for marks in marker["files"].values()) / marker["flows"]
    hours = {"hours": flows * seconds / devices / 3600, "device_hours": flows * seconds / 3600}
    return {**found, "gigabytes": flows * size / 1e9, **hours, "tried": marker["flows"]}


def _spread(total: int, count: int = _TRIED) -> list[int]:
    return sorted({place * (total - 1) // max(count - 1, 1) for place in range(count)})


def _expected_flows(job: Job, plan: Plan) -> int:
    """The plan's count; clips of unknown length are taken for as long as some that are opened."""
    counts = plan.manifest.counts
    guessed = [n for n in (counts == UNKNOWN_FLOWS).nonzero()[0].tolist() if _is_guessed(plan, n)]
    lengths = []
    for place in _spread(len(guessed), _OPENED) if guessed else ():
        row = plan.manifest.rows(guessed[place], guessed[place] + 1)[0]
        counted = with_flows(row, job.place(row.path))
        if counted.flows:
            lengths.append(counted.expected())
    mean = sum(lengths) / len(lengths) if lengths else UNKNOWN_FLOWS
    return int(counts.sum()) + round((mean - UNKNOWN_FLOWS) * len(guessed))


def _is_guessed(plan: Plan, number: int) -> bool:
    row: Row = plan.manifest.rows(number, number + 1)[0]
    return bool(row.path and not row.flows and not row.end)
