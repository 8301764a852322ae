"""The tables of the pages that are filled from stored numbers, for `benchmarks.release`."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.yardstick import (
    confidence_cell,
    error_cell,
    measured_on,
    summarize,
    summarize_methods,
    table,
)
from dicl_flow.errors import InputError

QUALITIES = ("live", "fast", "normal", "best")
RESULTS = "benchmarks/results"
YARDSTICK = f"{RESULTS}/yardstick.json"
EARLIER = f"{RESULTS}/earlier.json"
TRACKS = f"{RESULTS}/tracks.json"
END = "<!-- end -->"
SHORT = ("Middlebury", "Sintel clean", "KITTI-15", "KITTI-12 noc", "Chairs", "Motorcycle")
"""The sets of the README's table."""
KNOWN = ("Middlebury", "Sintel clean", "Sintel final", *SHORT[2:])
"""The sets that `EARLIER` has, in this order."""
NAMES = {
    "rendered": "`rendered`",
    "rendered best": "`rendered`, `--quality best`",
    "dis": "DIS medium",
}
Read = Callable[[str], Any]
"""The path of a JSON file in the tree -> its document."""


def mark(name: str) -> str:
    """Return the line before a table; `END` is the one after it."""
    return f"<!-- release: {name} -->"


def rows(*cells: list[str]) -> str:
    """Return the lines of a table; the first row has the headings."""
    head, *others = cells
    lines = ["|" + "|".join(f" {c} " if c else " " for c in line) + "|" for line in (head, *others)]
    lines.insert(1, "|---" * len(head) + "|")
    return "".join(f"{line}\n" for line in lines)


def methods(read: Read) -> dict[str, dict[str, dict[str, float]]]:
    """By method and set: the summary of the yardstick."""
    stored = read(YARDSTICK)["methods"]
    return summarize_methods({name: stored[name] for name in NAMES if name in stored})


def footnote(read: Read, *names: str) -> str:
    """Return a line that says where and when the methods were measured."""
    stored = read(YARDSTICK)["methods"]
    places = "; ".join(measured_on({name: stored[name] for name in names if name in stored}))
    return f"\n<sub>`python benchmarks/yardstick.py`: {places}.</sub>\n"


def errors(found: Mapping[str, Mapping[str, float]], names: tuple[str, ...]) -> list[str]:
    """The mean EPE of the pairs of each set; empty where not all of them were measured."""
    return [f"{found[name]['mean']:.2f}" if name in found else "" for name in names]


def earlier_label(weights: str, method: str) -> str:
    """Return the name of a row of `EARLIER`: the first digits of the sha256, and the quality."""
    return f"weights {weights[:8]}" + (", `--quality best`" if method == "rendered best" else "")


def stored_row(read: Read, method: str) -> list[str]:
    """Return the row of the packaged weights in `EARLIER`, for a quality not measured since."""
    weights = read(YARDSTICK)["methods"]["rendered"]["weights"]
    values = read(EARLIER).get(earlier_label(weights, method), [])
    return ["" if value is None else f"{value:.2f}" for value in values]


def score_line(document: Mapping[str, Any]) -> str:
    """Return what weights say of their scores: by set, the mean EPE of two qualities."""
    stored = document["methods"]
    normal, best = (summarize_methods(stored)[name] for name in ("rendered", "rendered best"))
    scores = (
        f"{name} {row['mean']:.2f} / {best[name]['mean']:.2f} ({int(row['pairs'])})"
        for name, row in normal.items()
        if name in stored["rendered"]["scores"]
    )
    return f"mean EPE of real pairs in px, quality normal / best: {', '.join(scores)}"


def yardstick(read: Read) -> str:
    """The errors on each set of the yardstick, and how far the confidence is right."""
    stored = {name: one for name, one in read(YARDSTICK)["methods"].items() if name in NAMES}
    found = summarize_methods(stored)
    heads = {name: "mean / median" for name in NAMES if name in stored}
    sure = {name: "over 10 px / AUSE" for name in heads if stored[name]["calibrated"]}
    tables = (table(found, heads, error_cell), table(found, sure, confidence_cell))
    return "\n".join(tables) + footnote(read, *NAMES)


def accuracy(read: Read) -> str:
    """The README's table."""
    found = methods(read)
    names = ("KITTI-15 stereo", "stereo 2006", *SHORT)
    lines = [["pairs", *(str(int(found["dis"][name]["pairs"])) for name in names)]]
    note = ""
    for method, label in NAMES.items():
        if method in found:
            lines.append([label, *errors(found[method], names)])
        elif stored := dict(zip(KNOWN, stored_row(read, method), strict=False)):
            lines.append([label, *(stored.get(name, "") for name in names)])
            note = "\n<sub>`best`: see the model card.</sub>\n"
    for label, values in read(EARLIER).items():
        if label.startswith("RAFT"):
            known = dict(zip(KNOWN, values, strict=True))
            lines.append([label, *(f"{known[n]:.2f}" if n in known else "" for n in names)])
    return rows(["", *names], *lines) + footnote(read, *NAMES) + note


def motion(read: Read) -> str:
    """The EPE by length of motion."""
    found, keys = methods(read), ("s0_10", "s10_40", "s40_plus")
    chosen = [name for name in ("rendered", "rendered best") if name in found]
    heads = [name.removeprefix("rendered").strip() or "normal" for name in chosen]
    first = [f"`{head}` s0-10" for head in heads]
    head = [cell for one in first for cell in (one, "s10-40", "s40+")]
    lines = []
    for name in ("KITTI-15 stereo", "stereo 2006", *SHORT[1:3], *SHORT[4:]):
        cells = []
        for method in chosen:
            row = found[method].get(name)
            cells += ["" if row is None else _cell(row, key) for key in keys]
        lines.append([name, *cells])
    return rows(["", *head], *lines) + footnote(read, *chosen)


def _cell(row: Mapping[str, float], key: str) -> str:
    return f"{row[key]:.2f}" if key in row else "none"


def calibration(read: Read) -> str:
    """How good the confidence is on unseen scenes, by quality."""
    head = ["quality", "AUSE", "of the entropy alone", "calibration error"]
    lines = []
    for quality in QUALITIES:
        one = read(f"{RESULTS}/calibration-{quality}.json")
        numbers = (one["ause"], one["ause_of_entropy"], one["calibration_error"])
        tenths = f"{one['decile_1']:.1f} and {one['decile_10']:.2f} px"
        lines.append([f"`{quality}`", *(f"{number:.3f}" for number in numbers), tenths])
    return rows([*head, "EPE of the least and most confident tenth"], *lines)


def levels(read: Read) -> str:
    """The error after each level, by length of motion."""
    found = read("docs/analysis/levels.json")["found"]["rendered"]
    strides = (64, 32, 16, 8, 4)

    def line(label: str, key: str, what: str) -> list[str]:
        still = f"{found['zero flow'][key]:.1f}" if what == "refined" else ""
        return [label, still, *(f"{found[f'stride {s} {what}'][key]:.1f}" for s in strides)]

    return rows(
        ["", "zero flow", f"stride {strides[0]}", *map(str, strides[1:])],
        line("all pixels", "epe", "refined"),
        line("the same, before the context net", "epe", "matched"),
        line("up to 10 px", "s0_10", "refined"),
        line("10 to 40 px", "s10_40", "refined"),
        line("40 px and more", "s40_plus", "refined"),
    )


def kernels(read: Read) -> str:
    """The mean weights of the DAP kernels."""
    found = read("docs/analysis/kernels.json")["levels"]
    head = ["stride", "own, mean", "neighbours, mean", "positive", "more than 3 away, mean"]
    lines = []
    for stride in (4, 8, 16, 32, 64):
        one = found[f"stride {stride}"]
        near, far = (f"{one[key]:+.3f}".replace("-", "−") for key in ("near_mean", "far_mean"))
        shares = [f"{100 * one[f'{k}_share']:.0f} %" for k in ("near_positive", "far_negative")]
        lines.append([str(stride), f"{one['own_mean']:.3f}", near, shares[0], far, shares[1]])
    return rows([*head, "negative"], *lines)


def figures(read: Read) -> str:
    """The last held-out error of the variants of the figures."""
    found = read("docs/ablations/figures.json")["variants"]
    curves = [variants[0]["curve"] for variants in found.values()]
    last = [f"{curve[max(curve, key=int)]:.1f}" for curve in curves]
    return rows(["variant", *found], ["EPE on 32 held-out scenes, px", *last])


def known_motion(read: Read) -> str:
    """Mean flow and confidence of pairs whose motion is known."""
    parts = read("docs/reliability/known-motion.json")["parts"]
    found = {**parts["still"], **parts["without information"]}
    labels = {
        "film": "equal frames: film",
        "texture": "the same: texture",
        "film, but for a pixel": "equal except for one grey level in one pixel: film",
        "texture, but for a pixel": "the same: texture",
        "constant": "constant",
        "black": "black",
        "white": "white",
        "black, then white": "black, then white",
        "noise": "noise, unrelated in both frames",
        "faint noise": "faint noise (4 grey levels)",
        "a hard cut": "a hard cut",
        "turned by 90 degrees": "a frame, then the same turned by 90 degrees",
    }
    keys = ("mean_flow_px", "mean_confidence")
    lines = [[text, *(f"{found[name][key]:.2g}" for key in keys)] for name, text in labels.items()]
    return rows(["pair", "mean flow, px", "mean confidence"], *lines)


def tracks(read: Read) -> str:
    """TAP-Vid's metrics of each method, in percent, and the error in the last frame."""
    head = ["%", "average Jaccard", "within 1 px", "2", "4", "8", "16", "position", "occlusion"]
    shares = ("average_jaccard", *(f"within_{px}" for px in (1, 2, 4, 8, 16)))
    shares += ("position_accuracy", "occlusion_accuracy")
    lines = []
    for name, found in read(TRACKS)["means"].items():
        percent = [f"{100 * found[key]:.1f}" for key in shares]
        pixels = [f"{found[key]:.2f}" for key in ("mean_error", "median_error")]
        lines.append([f"**{name}**" if name == "tracks" else name, *percent, *pixels])
    return rows([*head, "mean error, px", "median"], *lines)


PAGES: dict[str, dict[str, Callable[[Read], str]]] = {
    "README.md": {"accuracy": accuracy},
    "docs/model-card.md": {"calibration": calibration, "yardstick": yardstick},
    "docs/measurements/weights.md": {"motion": motion},
    "docs/analysis.md": {"levels": levels, "kernels": kernels},
    "docs/ablations/README.md": {"figures": figures},
    "docs/reliability.md": {"known-motion": known_motion},
    "docs/measurements/tracks.md": {"tracks": tracks},
}
"""By page: its tables, each between `mark` and `END`."""


def insert(page: str, text: str, name: str, table: str) -> str:
    """Replace the table of a name."""
    before, found, rest = text.partition(f"{mark(name)}\n")
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise InputError(f"{page} lacks {mark(name)} or the {END} after it")
    return f"{before}{found}{table}{ended}{after}"


def fill(root: Path, new: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return all pages with their tables, from the numbers in `new`, or else in the tree."""

    def read(path: str) -> Any:
        return json.loads(new[path] if path in new else (root / path).read_bytes())

    pages = {}
    for page, tables in PAGES.items():
        text = (root / page).read_text()
        for name, make in tables.items():
            text = insert(page, text, name, make(read))
        pages[page] = text.encode()
    return pages


def earlier_rows(root: Path, new: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the rows of earlier weights, with those that are replaced now on top."""
    if YARDSTICK not in new:
        return {}
    stored = json.loads((root / YARDSTICK).read_bytes())["methods"]
    earlier = json.loads((root / EARLIER).read_bytes())
    replaced = {}
    for name, method in stored.items():
        if name in ("rendered", "rendered best"):
            found = summarize(method["scores"])
            label = earlier_label(method["weights"], name)
            replaced[label] = [round(found[n]["mean"], 2) if n in found else None for n in KNOWN]
    text = ",\n".join(
        f" {json.dumps(label, ensure_ascii=False)}: {json.dumps(values)}"
        for label, values in {**replaced, **earlier}.items()
    )
    return {EARLIER: f"{{\n{text}\n}}\n".encode()}
