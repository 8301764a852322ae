"""The summary of a run, from its markers and its journal: summary.json and summary.png."""

from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import nlargest, nsmallest
from math import log10
from pathlib import Path
from typing import Any

import numpy as np

from ..files import Array, encode_image
from ..pictures.sheets import contact_sheet, thumbnail, write_on
from .decoding import find_pair
from .job import Job
from .products import BINS
from .records import read_journals
from .segments import Marker, Plan
from .storage import write_json

SUMMARY, PICTURE = "summary.json", "summary.png"
_SHOWN, _LISTED = 4, 20
_HEIGHT, _BAR = 160, 24  # px of the histogram
_BAR_COLOR, _AXIS_COLOR = (90, 160, 250), (120, 120, 120)

Summary = dict[str, Any]


def summarize(markers: Iterable[Marker], journal: Iterable[Mapping[str, Any]]) -> Summary:
    """Add up the markers of segments; the slowest clips and the hours are those of the journal."""
    listed = list(markers)
    histogram: Counter[int] = Counter()
    for marker in listed:
        histogram.update({int(place): count for place, count in marker["histogram"].items()})
    entries = [entry for entry in journal if entry["event"] == "segment"]
    seconds: Counter[str] = Counter()
    for entry in entries:
        seconds[entry["device"].partition(":")[0]] += entry["seconds"]
    names = ("clips", "flows", "failed", "cuts")
    return {
        "segments": len(listed),
        **{name: sum(marker[name] for marker in listed) for name in names},
        "bytes": sum(marks["bytes"] for m in listed for marks in m["files"].values()),
        "device_hours": {kind: total / 3600 for kind, total in seconds.items()},
        "histogram_edges_px": [float(f"{edge:.4g}") for edge in BINS],
        "histogram": [histogram[place] for place in range(len(BINS) - 1)],
        "calmest": nsmallest(_SHOWN, (flow for m in listed for flow in m["calmest"])),
        "fastest": nlargest(_SHOWN, (flow for m in listed for flow in m["fastest"])),
        "slowest": _slowest(entries),
        "failures": [failure for m in listed for failure in m["failures"]][:_LISTED],
    }


def _slowest(entries: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    clips: dict[str, float] = dict(entry["slowest"] for entry in entries)
    return [[clip, clips[clip]] for clip in nlargest(_SHOWN, clips, key=clips.__getitem__)]


def write_summary(job: Job, plan: Plan, markers: Iterable[Marker]) -> Summary:
    """Write summary.json and summary.png to the output."""
    storage = job.storage()
    summary = summarize(markers, read_journals(storage))
    summary["segments_planned"] = len(plan)
    write_json(storage, SUMMARY, summary)
    storage.write(PICTURE, encode_image(PICTURE, draw_summary(summary, job, plan)))
    return summary


def draw_summary(summary: Summary, job: Job, plan: Plan) -> Array:
    """Return a picture: histogram of motion, slowest and failed clips, extreme pairs."""
    rows, labels = [], []
    for name in ("calmest", "fastest"):
        rows.append([_picture(flow, job, plan) for flow in summary[name]])
        labels.append(f"{name} pairs: mean length in px, and both frames on top of each other")
    sheet = contact_sheet(rows, labels, [""] * _SHOWN)
    lines = [
        f"{summary['flows']:,} flows of {summary['clips']:,} clips, {summary['failed']:,} failed, "
        f"{summary['cuts']:,} cuts",
        *(f"slowest: {clip}, {seconds:.1f} s" for clip, seconds in summary["slowest"]),
        *(f"failed: {clip}: {status}" for clip, status in summary["failures"][:6]),
    ]
    text = np.concatenate([_line(line, sheet.shape[1]) for line in lines])
    return np.concatenate([text, _bars(summary["histogram"], sheet.shape[1]), sheet])


def _line(text: str, width: int) -> Array:
    return write_on(np.full((20, width, 3), 24, np.uint8), text)


def _bars(counts: list[int], width: int) -> Array:
    picture = np.full((_HEIGHT, width, 3), 24, np.uint8)
    for place, count in enumerate(counts):
        height = round(count / max(*counts, 1) * (_HEIGHT - _BAR))
        left = 4 + place * _BAR
        picture[_HEIGHT - height :, left : left + _BAR - 3] = _BAR_COLOR
    picture[-1] = _AXIS_COLOR
    return np.concatenate([_line("flows by mean length, px", width), picture, _axis(width)])


def _axis(width: int) -> Array:
    """The lengths 0.01, 0.1, 1 and so on, below the left edges of their bars."""
    strip = _line("", width)
    for place, edge in enumerate(BINS):
        left = place * _BAR
        if round(log10(edge), 6).is_integer() and left < width:
            strip[:, left:] = write_on(strip[:, left:], f"{edge:g}")
    return strip


def _picture(flow: list[Any], job: Job, plan: Plan) -> Array:
    """Both frames of a flow, if they can still be read."""
    length, key, clip = flow
    picture, label = np.full((240, 320, 3), 60, np.uint8), f"{length:.3g} px, {Path(clip).name}"
    row = int(key.partition("_")[0])
    pair = find_pair(job, plan.manifest.rows(row, row + 1)[0], key)
    if pair is not None and pair.images is not None:
        picture = thumbnail(pair.images[0] // 2 + pair.images[1] // 2)
        label += f" {pair.frame1}" if pair.number else ""
    return write_on(picture, label)
