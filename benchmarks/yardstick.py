"""The accuracy of weights on real pairs of nine small sets, every set counting equally.

    python benchmarks/yardstick.py FOLDER --weights rendered --weights my.safetensors \
        --quality normal --quality best -o yardstick.json

For each set: the EPE of its pairs, mean and median over the pairs; the share of errors over 10 px
among the pixels whose confidence is above 0.9; AUSE. Weights without a calibration have no
probabilities, so the columns of the confidence stay empty. `--weights dis` is OpenCV's DIS.
FOLDER (default: the environment variable DICL_FLOW_DATASETS) holds the sets in the layouts of
`SETS`. An output that exists is continued: pairs that were measured with the same weights, in the
same way, are not measured again, and other methods in it stay.

Never train on these pairs.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from dicl_flow.config import NORMAL, find_quality
from dicl_flow.data import FlowPair, list_pairs, read_frames, read_sample
from dicl_flow.errors import InputError, unknown_name
from dicl_flow.evaluation import BASELINES, endpoint_error, score_confidence, score_flow
from dicl_flow.files import Array, write_files
from dicl_flow.weights import read_weights, resolve

SURE, LARGE = 0.9, 10.0  # a confidence; px
KEPT = ("epe", "s0_10", "s10_40", "s40_plus")
PARTS = (*KEPT, "ause", "sure_over_10px")
"""What is stored for each pair: a sum and a number of pixels (of pairs for `ause`)."""


class PairSet(NamedTuple):
    """Where the pairs of a set are."""

    data: str
    """The data set's name, as for `dicl-flow eval --data`."""
    place: str
    """Its folder or manifest, in the folder of all sets."""


MANIFEST = "validation/pairs.csv"
SETS = {
    "KITTI-15 stereo": PairSet("pairs:kitti15-stereo", MANIFEST),
    "stereo 2006": PairSet("pairs:stereo2006", MANIFEST),
    "Middlebury": PairSet("middlebury", "Middlebury"),
    "Sintel clean": PairSet("sintel-clean", "Sintel"),
    "Sintel final": PairSet("sintel-final", "Sintel"),
    "KITTI-15": PairSet("kitti15", "KITTI2015"),
    "KITTI-12 noc": PairSet("kitti12:noc", "KITTI2012"),
    "Chairs": PairSet("chairs:all", "FlyingChairs_release"),
    "Motorcycle": PairSet("stereo", "MiddleburyStereo2014"),
}


class Method(NamedTuple):
    """Weights with a quality, or a baseline."""

    name: str
    """Its name in tables."""
    about: dict[str, Any]
    """What was measured, and where: stored with the numbers."""
    estimate: Callable[[Array, Array], tuple[Array, Array | None]]
    """Two frames -> the flow, and the confidence if it is a probability."""


Scores = dict[str, dict[str, dict[str, list[float]]]]
"""By set and pair, the `PARTS`, each a sum and a number."""


def find_pairs(folder: Path, name: str) -> list[FlowPair]:
    """List the pairs of a set; a missing one is an error that says how it is laid out."""
    data, place = SETS[name]
    try:
        return list_pairs(data, folder / place, needs_truth=True)
    except FileNotFoundError as error:
        raise InputError(f"set {name!r}: {error} (--set leaves sets out)") from None


def open_method(entry: str, quality: str, device: str, precision: str) -> Method:
    """Open weights, or a baseline, which has no confidence."""
    from dicl_flow.estimation.compute import choose_device
    from dicl_flow.estimation.estimator import load
    from dicl_flow.lab.speed import describe_machine

    today = {"date": date.today().isoformat()}
    if entry in BASELINES:
        cpu = describe_machine(choose_device("cpu"))
        baseline = BASELINES[entry]()
        about = {"device": cpu["device"], "calibrated": False, **today}
        return Method(entry, about, lambda image1, image2: (baseline(image1, image2), None))
    estimator = load(entry, device, precision, quality=quality)
    calibrated = estimator.calibration is not None
    about = {
        "weights": read_weights(resolve(entry)).sha256,
        "quality": quality,
        "precision": estimator.precision,
        "calibrated": calibrated,
        **describe_machine(estimator.device),
        **today,
    }

    def estimate(image1: Array, image2: Array) -> tuple[Array, Array | None]:
        found = estimator(image1, image2)
        return found.flow, found.confidence if calibrated else None

    return Method(method_name(entry, quality), about, estimate)


def method_name(entry: str, quality: str) -> str:
    """Return the name in tables: that of the weights, and of a quality other than normal."""
    name = entry if entry in BASELINES else resolve(entry).stem
    return name if quality == NORMAL else f"{name} {quality}"


def score(pair: FlowPair, flow: Array, confidence: Array | None) -> dict[str, list[float]]:
    """Compare (H, W, 2) flow and (H, W) confidence with the truth: the `PARTS` of a pair."""
    sample = read_sample(pair)
    error = endpoint_error(flow, sample.flow)[sample.valid]  # (N,)
    parts = {name: [*map(rounded, score_flow(flow, sample).parts[name])] for name in KEPT}
    if confidence is None:
        return parts
    known = confidence[sample.valid]
    wrong = error[known > SURE] > LARGE
    parts["sure_over_10px"] = [100 * int(wrong.sum()), wrong.size]
    ranked = score_confidence(known, error).parts
    return parts | ({"ause": [*map(rounded, ranked["ause"])]} if ranked else {})


def rounded(number: float) -> float:
    """Return a number with six digits; counts stay whole."""
    return number if isinstance(number, int) else float(f"{number:.6g}")


def measure(
    method: Method, pairs: Mapping[str, list[FlowPair]], scores: Scores, save: Callable[[], None]
) -> None:
    """Score the pairs that `scores` lacks; save after each one, as a run may be interrupted."""
    for name, listed in pairs.items():
        done = scores.setdefault(name, {})
        for pair in listed:
            if pair.name not in done:
                done[pair.name] = score(pair, *method.estimate(*read_frames(pair)))
                print(f"{method.name}: {name}, {pair.name}", file=sys.stderr, flush=True)
                save()


def summarize(scores: Scores) -> dict[str, dict[str, float]]:
    """By set: the number of pairs, mean and median over them, and the other metrics, pooled.

    The last entry is the mean of each metric over the sets that have it.
    """
    found = {name: summarize_set(pairs.values()) for name, pairs in scores.items() if pairs}
    keys = dict.fromkeys(key for row in found.values() for key in row)
    overall = {key: fmean(row[key] for row in found.values() if key in row) for key in keys}
    overall["pairs"] = sum(row["pairs"] for row in found.values())
    return {**found, "mean of the sets": overall}


def summarize_methods(methods: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Summarize each method, without the sets of which another method has more pairs."""
    found = {name: summarize(method["scores"]) for name, method in methods.items()}
    most: dict[str, float] = {}
    for name, row in (item for rows in found.values() for item in rows.items()):
        most[name] = max(row["pairs"], most.get(name, 0))
    return {
        method: {name: row for name, row in rows.items() if row["pairs"] == most[name]}
        for method, rows in found.items()
    }


def summarize_set(pairs: Iterable[Mapping[str, list[float]]]) -> dict[str, float]:
    """Summarize the pairs of one set."""
    listed = list(pairs)
    errors = [total / count for total, count in (pair["epe"] for pair in listed) if count]
    found = {"pairs": len(listed), "mean": fmean(errors), "median": median(errors)}
    for name in PARTS:
        parts = [pair[name] for pair in listed if name in pair]
        if number := sum(count for _, count in parts):
            found[name] = sum(total for total, _ in parts) / number
    return found


def markdown(document: Mapping[str, Any]) -> str:
    """Return two tables, a row for each set: errors, and how far the confidence is right."""
    methods = document["methods"]
    found = summarize_methods(methods)
    errors = dict.fromkeys(methods, "mean / median")
    sure = {name: "over 10 px / AUSE" for name, about in methods.items() if about["calibrated"]}
    tables = [table(found, errors, error_cell)]
    if sure:
        tables.append(table(found, sure, confidence_cell))
    unsure = [name for name, about in methods.items() if not about["calibrated"]]
    if unsure:
        tables.append(f"Without a calibrated confidence: {', '.join(unsure)}.\n")
    tables.append(f"Measured on: {'; '.join(measured_on(methods))}.\n")
    return "\n".join(tables)


def measured_on(methods: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return name, machine, precision and date of each method."""
    keys = ("device", "precision", "date")
    return [
        f"{name}: {', '.join(about[key] for key in keys if key in about)}"
        for name, about in methods.items()
    ]


def table(
    found: Mapping[str, Mapping[str, Mapping[str, float]]],
    headings: Mapping[str, str],
    cell: Callable[[Mapping[str, float]], str],
) -> str:
    """Return a table: a row for each set, a column for each method."""
    chosen = {name: found[name] for name in headings}
    names = [*SETS, "mean of the sets"]
    rows = [name for name in names if any(name in rows for rows in chosen.values())]
    lines = [f"| set | pairs | {' | '.join(f'{n}: {what}' for n, what in headings.items())} |"]
    lines.append("|---" * (len(headings) + 2) + "|")
    for name in rows:
        pairs = next(int(rows[name]["pairs"]) for rows in chosen.values() if name in rows)
        cells = [cell(rows[name]) if name in rows else "" for rows in chosen.values()]
        lines.append(
            f"| {name} | {pairs} |" + "|".join(f" {c} " if c else " " for c in cells) + "|"
        )
    return "\n".join(lines) + "\n"


def error_cell(row: Mapping[str, float]) -> str:
    return f"{row['mean']:.2f} / {row['median']:.2f}"


def confidence_cell(row: Mapping[str, float]) -> str:
    share = f"{row['sure_over_10px']:.2f} %" if "sure_over_10px" in row else "no such pixel"
    return f"{share} / {row['ause']:.3f}" if "ause" in row else share


def read_document(path: Path | None) -> dict[str, Any]:
    """Read what an earlier run has written, or start with nothing."""
    if path is None or not path.exists():
        return {"methods": {}}
    try:
        document = json.loads(path.read_text())
        if isinstance(document["methods"], dict):
            return document
    except (ValueError, KeyError, TypeError):
        pass
    raise InputError(f"{path} was not written by this script; give another file with -o")


def earlier_scores(document: Mapping[str, Any], method: Method) -> Scores:
    """Return the scores of the same method measured in the same way, on any day."""
    stored = dict(document["methods"].get(method.name, {}))
    scores = stored.pop("scores", {})
    same = {**stored, "date": ""} == {**method.about, "date": ""}
    return {name: renamed(pairs) for name, pairs in scores.items()} if same else {}


def renamed(pairs: Mapping[str, Any]) -> dict[str, Any]:
    """Call 00021_stereo2006-Baby1_img1, as stored numbers do, by the name it has today."""
    return {re.sub("^[0-9]{5}_(.+)_img1$", r"\1", name): parts for name, parts in pairs.items()}


def chosen_methods(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Return weights and quality of each method; a baseline has one quality only."""
    weights, qualities = arguments.weights or ["rendered"], arguments.quality or [NORMAL]
    for quality in qualities:
        find_quality(quality)
    chosen = dict.fromkeys(
        (entry, NORMAL if entry in BASELINES else quality)
        for entry, quality in product(weights, qualities)
    )
    names = [method_name(*entry) for entry in chosen]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two methods have the name {name!r}; rename a weights file")
    return list(chosen)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure every method on every set, and return the document."""
    for name in arguments.set or ():
        if name not in SETS:
            raise unknown_name("set", name, SETS)
    if arguments.folder is None:
        raise InputError("give the folder of the sets, or set DICL_FLOW_DATASETS")
    pairs = {name: find_pairs(arguments.folder, name) for name in arguments.set or SETS}
    chosen, document = chosen_methods(arguments), read_document(arguments.output)
    for weights, quality in chosen:
        method = open_method(weights, quality, arguments.device, arguments.precision)
        scores = earlier_scores(document, method)
        document["methods"][method.name] = {**method.about, "scores": scores}
        measure(method, pairs, scores, partial(save, arguments.output, document))
    save(arguments.output, document)
    return document


def save(path: Path | None, document: Mapping[str, Any]) -> None:
    """Write the document, a line for each part of a pair."""
    if path is not None:
        text = json.dumps(document, indent=1)
        text = re.sub(r"\[\s+([^][]+?),\s+([^][]+?)\s+\]", r"[\1, \2]", text)
        write_files({path: f"{text}\n".encode()})


def main() -> None:
    """Print the tables, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = os.environ.get("DICL_FLOW_DATASETS")
    parser.add_argument("folder", type=Path, nargs="?", default=folder and Path(folder))
    parser.add_argument("-w", "--weights", action="append", help="name, file or dis; repeatable")
    parser.add_argument("--quality", action="append", help="repeatable; default: normal")
    parser.add_argument("--set", action="append", help="only this set; repeatable")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("-o", "--output", type=Path, help="JSON file, continued if it exists")
    parser.add_argument("--markdown", type=Path, help="also write the tables to a file")
    arguments = parser.parse_args()
    try:
        tables = markdown(run(arguments))
        if arguments.markdown is not None:
            write_files({arguments.markdown: tables.encode()})
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(tables, end="")


if __name__ == "__main__":
    main()
