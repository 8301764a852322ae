"""Results of `dicl-flow bench` as rows of a table and as records."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .speed_cases import Result

HEADINGS = (
    *("size", "batch", "path", "start s", "ms", "GiB"),
    *("times plain", "mean px", "max px", "of peak"),
)
LEGEND = """\
start s: seconds from the loaded network to the first result
times plain: how many times as fast as plain fp32
mean px, max px: distance of the flow from that of plain fp32
of peak: share of the speed that this machine's arithmetic and memory would allow"""
PEERS_LEGEND = {
    "dis": 'OpenCV\'s dense inverse search, "medium", on the CPU',
    "raft": "torchvision's raft_large with random weights; only the times can be compared",
}


def as_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Each result as the cells of a table under `HEADINGS`."""
    return [
        (
            f"{result.case.width}x{result.case.height}",
            str(result.case.batch),
            f"{result.backend} {result.precision}",
            f"{result.startup_seconds:.1f}",
            _milliseconds(result.seconds),
            _cell(None if result.peak_bytes is None else result.peak_bytes / 2**30, ".2f"),
            _cell(result.ratio, ".2f"),
            _cell(result.mean_difference, ".2g"),
            _cell(result.max_difference, ".2g"),
            "-" if result.floor_share is None else f"{100 * result.floor_share:.0f} %",
        )
        for result in results
    ]


def as_record(result: Result) -> dict[str, Any]:
    """One result as a flat record, with derived numbers."""
    values = asdict(result)
    case = values.pop("case")
    return {**case, **values, "pairs_per_second": result.case.batch / result.seconds}


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f}" if seconds >= 1 else f"{1000 * seconds:.4g}"


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
