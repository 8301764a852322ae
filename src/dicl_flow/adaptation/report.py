"""The report of an adaptation: pictures before and after, curves, and all numbers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..files import Array, encode_image, read_image, write_files
from ..pictures.figures import contact_sheet, draw_figure, encode_figure
from ..pictures.visualize import error_to_rgb, flow_to_rgb, full_color
from .teacher import Lesson, read_flow, speed_name

PAIRS, KEPT, CURVE = "pairs.png", "kept.png", "training.png"
_WORST = 0.5  # census error that is shown brightest


def pairs_sheet(rows: Sequence[tuple[str, Array, Sequence[Array], Sequence[Array]]]) -> bytes:
    """Draw label, frame, flows before and after, and errors before and after of some pairs."""
    pictures = []
    for _, frame, flows, errors in rows:
        most = max(full_color(flow) for flow in flows)
        pictures.append(
            [
                frame,
                *(flow_to_rgb(flow, most) for flow in flows),
                *(error_to_rgb(error, np.ones_like(error, bool), _WORST) for error in errors),
            ]
        )
    columns = ["frame", "flow before", "flow after", "warping error before", "after"]
    return encode_image(PAIRS, contact_sheet(pictures, [row[0] for row in rows], columns))


def kept_sheet(lessons: Sequence[Lesson]) -> bytes:
    """Draw what the teacher has kept of some pairs: the rest is black."""
    pictures, labels = [], []
    for files in lessons:
        flow, kept = read_flow(files.flows)
        shown = flow_to_rgb(np.where(kept[..., None], flow, np.float32(np.nan)), full_color(flow))
        pictures.append([read_image(files.image1), shown])
        labels.append(f"{files.flows.stem}: {kept.mean():.0%} kept")
    return encode_image(KEPT, contact_sheet(pictures, labels, ["frame", "flow of the teacher"]))


def training_curve(log: Path) -> bytes:
    """Draw loss and end-point error over the steps of a training log; short runs have none."""
    texts = log.read_text().splitlines() if log.is_file() else []
    lines = [line for line in map(json.loads, texts) if "epe" in line]
    figure = draw_figure(9, 3.5)
    for axes, key, name in zip(
        figure.subplots(1, 2), ("loss", "epe"), ("loss", "error (px)"), strict=True
    ):
        axes.plot([line["step"] for line in lines], [line[key] for line in lines], marker=".")
        axes.set(xlabel="step", ylabel=name, title=None if lines else "too few steps to draw")
        axes.grid(alpha=0.3)
    return encode_figure(figure)


def write_report(
    folder: Path,
    document: Mapping[str, Any],
    pictures: Mapping[str, bytes],
    others: Mapping[Path, bytes] | None = None,
) -> None:
    """Write page, numbers, pictures and `others`, all at once; report.json is the last."""
    contents = {**(others or {}), **{folder / name: data for name, data in pictures.items()}}
    contents[folder / "report.md"] = markdown(document).encode()
    contents[folder / "report.json"] = (json.dumps(document, indent=1) + "\n").encode()
    write_files(contents)


def markdown(document: Mapping[str, Any]) -> str:
    """Return the report as a page; `document` is the content of report.json."""
    verdict, teacher = document["verdict"], document["teacher"]
    lines = [
        f"# Adaptation: {'accepted' if verdict['accepted'] else 'not accepted'}",
        "",
        *(f"- {reason}" for reason in verdict["reasons"]),
        *(f"- Warning: {text}" for text in [*teacher["warnings"], *verdict["warnings"]]),
        "",
        *(_measured(document) if "pairs" in document else ()),
        "## What the teacher kept",
        "",
        f"{teacher['kept']:.1%} of the pixels of {teacher['pairs']} pairs. What is never kept can "
        "be learned from rendered scenes only.",
        "",
        *_kept_tables(teacher),
        "",
        f"![Kept pixels]({KEPT})",
        "",
        "## Footage",
        "",
        "| clip | size | frames | usable | skipped | sha256 |",
        "|---|---|---|---|---|---|",
        *map(_clip_row, document["footage"]),
    ]
    return "\n".join(lines) + "\n"


def _measured(document: Mapping[str, Any]) -> list[str]:
    """What was measured before and after, and the training."""
    return [
        "| | before | after | change | 90 % of the changes lie in |",
        "|---|---|---|---|---|",
        *(_row(name, document["verdict"][key], digits) for key, name, digits in _ROWS),
        "",
        f"Measured on {len(document['pairs'])} pairs of held-back footage, of which no frame was "
        f"trained on, and on {document['scenes']} rendered scenes. Trained on "
        f"{document['teacher']['usable_pairs']} pairs, {document['steps']:,} steps, seed "
        f"{document['seed']}. The weights go {document['share']:.0%} of the way to the trained "
        "ones.",
        "",
        f"![Worst pairs before and after]({PAIRS})",
        "",
        "The pairs with the largest warping error before, then those that got worst. Flow in "
        "colours: hue is direction, saturation speed.",
        "",
        f"![Loss and error in training]({CURVE})",
        "",
    ]


_ROWS = (
    ("census", "warping error, 0 to 1", 4),
    ("disagreement", "disagreement of both directions, px", 3),
    ("scenes", "error on rendered scenes, px", 3),
    ("speed", "length of the flow, px", 2),
)


def _row(name: str, change: Mapping[str, float], digits: int) -> str:
    values = [f"{change[key]:.{digits}f}" for key in ("before", "after")]
    bounds = f"{change['low']:+.{digits}f} to {change['high']:+.{digits}f}"
    return f"| {name} | {values[0]} | {values[1]} | {change['relative']:+.1%} | {bounds} |"


def _kept_tables(teacher: Mapping[str, Any]) -> list[str]:
    counts = zip(teacher["seen_by_speed"], teacher["kept_by_speed"], strict=True)
    total = max(sum(teacher["seen_by_speed"]), 1)
    speeds = [
        f"| {speed_name(octave)} | {seen / total:.1%} | {kept / seen:.1%} |"
        for octave, (seen, kept) in enumerate(counts)
        if seen
    ]
    regions = [
        f"| {name} | " + " | ".join(f"{share:.1%}" for share in row) + " |"
        for name, row in zip(("top", "middle", "bottom"), teacher["kept_by_region"], strict=True)
    ]
    return [
        "| speed, px | of all pixels | kept |",
        "|---|---|---|",
        *speeds,
        "",
        "| kept | left | centre | right |",
        "|---|---|---|---|",
        *regions,
    ]


def _clip_row(clip: Mapping[str, Any]) -> str:
    skipped = ", ".join(f"{count} {what}" for what, count in clip["skipped"].items() if count)
    height, width = clip["size"]
    return (
        f"| {clip['name']} | {width}x{height} | {clip['num_frames']} | {clip['usable']} | "
        f"{skipped or 'none'} | {clip['sha256'][:12]}… |"
    )
