"""The accuracy of a float16 .onnx file on real pairs, beside that of the estimator in float32.

    python -m benchmarks.exported_half FOLDER -o exported_half.json

For each frame size, `dicl-flow export --size … --precision fp16` is run, and the file by
onnxruntime on the CPU. The pairs are those of the yardstick outside its manifest (`validation`).
For each: the EPE of both, and the mean distance of their flows over all pixels. FOLDER (default:
the environment variable DICL_FLOW_DATASETS) is laid out as for the yardstick. An output that
exists is continued.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from datetime import date
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import onnxruntime

from benchmarks.yardstick import MANIFEST, SETS, find_pairs, rounded
from dicl_flow.data import FlowPair, read_frames, read_sample
from dicl_flow.errors import InputError
from dicl_flow.estimation.compute import choose_device
from dicl_flow.estimation.estimator import FlowEstimator, load
from dicl_flow.estimation.export import export
from dicl_flow.evaluation import endpoint_error
from dicl_flow.files import Array, write_files
from dicl_flow.lab.speed import describe_machine
from dicl_flow.ops import Size
from dicl_flow.weights import read_weights, resolve

Estimate = Callable[[Array, Array], Array]


def find_all(folder: Path) -> Iterator[tuple[str, FlowPair]]:
    """Yield name and pair of each set outside the manifest."""
    for name, (_, place) in SETS.items():
        if place != MANIFEST:
            yield from ((f"{name}: {pair.name}", pair) for pair in find_pairs(folder, name))


def open_half(estimator: FlowEstimator, size: Size) -> Estimate:
    """Export for frames of `size` in float16, and run the file by onnxruntime."""
    data, _ = export(estimator, "onnx", size, {}, precision="fp16")
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def estimate(image1: Array, image2: Array) -> Array:
        """Two (H, W, 3) images -> flow (H, W, 2)."""
        frames = {"image1": image1, "image2": image2}
        flow, _ = session.run(None, {n: f.transpose(2, 0, 1)[None] for n, f in frames.items()})
        return flow[0].transpose(1, 2, 0)

    return estimate


def measure(pair: FlowPair, exact: Estimate, half: Estimate) -> dict[str, Any]:
    """Compare both flows with the truth, and with each other."""
    sample = read_sample(pair)
    flow, rough = (estimate(sample.image1, sample.image2) for estimate in (exact, half))
    height, width = flow.shape[:2]
    truth = {"fp32": flow, "fp16": rough}
    errors = {n: endpoint_error(f, sample.flow)[sample.valid].mean() for n, f in truth.items()}
    distance = endpoint_error(rough, flow)
    found = {**errors, "mean_distance": distance.mean(), "largest_distance": distance.max()}
    return {"size": [width, height], **{n: rounded(float(value)) for n, value in found.items()}}


def run(folder: Path, weights: str | None, output: Path) -> dict[str, Any]:
    """Measure every pair that `output` lacks, and save after each."""
    exact, plain = load(weights, "cpu", "fp32"), load(weights, "cpu", "fp32", "plain")
    document = start(output, read_weights(resolve(weights)).sha256)
    waiting = [(name, pair) for name, pair in find_all(folder) if name not in document["pairs"]]
    for size, found in groupby(sorted(waiting, key=size_of), key=size_of):
        half = open_half(plain, size)  # one at a time, as they take memory
        for name, pair in found:
            document["pairs"][name] = measure(pair, lambda *frames: exact(*frames).flow, half)
            print(f"{name}: {document['pairs'][name]}", file=sys.stderr, flush=True)
            write_files({output: f"{json.dumps(document, indent=1)}\n".encode()})
    return document


def size_of(named: tuple[str, FlowPair]) -> Size:
    height, width = read_frames(named[1])[0].shape[:2]
    return height, width


def start(output: Path, sha256: str) -> dict[str, Any]:
    """Continue what was measured with the same weights in the same way, on any day."""
    about = {
        "weights": sha256,
        **describe_machine(choose_device("cpu")),
        "onnxruntime": onnxruntime.__version__,
        "date": date.today().isoformat(),
    }
    earlier = json.loads(output.read_text()) if output.exists() else {}
    pairs = earlier.pop("pairs", {})
    return {**about, "pairs": pairs if {**earlier, "date": about["date"]} == about else {}}


def main() -> None:
    """Print the means over the pairs, and write all numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = os.environ.get("DICL_FLOW_DATASETS")
    parser.add_argument("folder", type=Path, nargs="?", default=folder and Path(folder))
    parser.add_argument("-w", "--weights", help="name or file")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file")
    arguments = parser.parse_args()
    try:
        if arguments.folder is None:
            raise InputError("give the folder of the sets, or set DICL_FLOW_DATASETS")
        document = run(arguments.folder, arguments.weights, arguments.output)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    for key in ("fp32", "fp16", "mean_distance"):
        print(f"{key}: {fmean(pair[key] for pair in document['pairs'].values()):.4f} px")


if __name__ == "__main__":
    main()
