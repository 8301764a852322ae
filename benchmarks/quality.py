"""Time and accuracy of estimates with several passes and scales.

    python benchmarks/quality.py --data rendered=PHOTOS --size 640x384 -n 24 -o quality.json

A candidate is SCALE[+SCALE …][@STRIDE]: 1 is the normal estimate, 0.7 a smaller one, 1+2@8 a
normal one followed by a pass at twice the size that starts at the level of stride 8. Each is
measured with every `--max-pixels` (0: full size) and `--padding`; the default is that of the
weights. Rendered scenes are held out: with the default settings, or with those of `--recipe`.
Look at other data sets (`--data sintel-clean=…`) last: settings are chosen on rendered scenes only.
"""

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from dicl_flow.config import PADDINGS, ModelConfig, Quality
from dicl_flow.data import FlowSample, list_pairs, read_sample
from dicl_flow.data.datasets import parse_data_argument
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.estimation.inputs import image_batch
from dicl_flow.evaluation import Score, pool, score_flow
from dicl_flow.lab.speed import median_seconds
from dicl_flow.render import held_out_renderer
from dicl_flow.training import read_recipe
from dicl_flow.weights import load_model, read_weights, resolve

CANDIDATES = ["0.5", "0.7", "1", "1.5", "2", "1+1.5@16", "1+1.5@8", "1+1.5@4"]
CANDIDATES += ["1+2@16", "1+2@8", "1+2@4"]
SHOWN = {
    "epe": "EPE",
    "over_1px": "1px %",
    "s0_10": "s0-10",
    "s10_40": "s10-40",
    "s40_plus": "s40+",
}


def parse_candidate(text: str) -> Quality:
    """Read "1+2@8"."""
    found = re.fullmatch(r"([\d.]+(?:\+[\d.]+)*)(?:@(\d+))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"SCALE[+SCALE …][@STRIDE], as 1+2@8, got {text!r}")
    scales = tuple(float(scale) for scale in found[1].split("+"))
    return Quality(text, scales, int(found[2] or 8))


def sets(arguments: argparse.Namespace) -> Iterator[tuple[str, list[FlowSample]]]:
    """The name and the pairs of each data set; rendered scenes once per size."""
    for name, root in arguments.data:
        if name != "rendered":
            yield name, [read_sample(pair) for pair in list_pairs(name, root, needs_truth=True)]
            continue
        photos = None if str(root) == "procedural" else root
        config = read_recipe(arguments.recipe, []).render if arguments.recipe else None
        for size in arguments.size:
            width, height = map(int, size.split("x"))
            renderer = held_out_renderer(photos, (height, width), arguments.device, config=config)
            numbers = range(arguments.scenes)
            scenes = [renderer.render(1, number).to_samples()[0] for number in numbers]
            yield f"rendered {size}", scenes


def measure(
    estimator: FlowEstimator, samples: list[FlowSample], repeats: int
) -> tuple[Score, float | None]:
    """The score over all pairs, and the seconds that the first one takes, if timed."""
    scores = [
        score_flow(estimator(sample.image1, sample.image2).flow, sample) for sample in samples
    ]
    if not repeats:
        return pool(scores), None
    frames = [image_batch(i, estimator.device)[0] for i in (samples[0].image1, samples[0].image2)]
    seconds = median_seconds(lambda: estimator.estimate(*frames), estimator.device, repeats)
    return pool(scores), seconds


def row(
    name: str, quality: Quality, fed: ModelConfig, values: dict[str, float], seconds: float | None
) -> dict[str, Any]:
    """Print a row of the table in Markdown, and return it for JSON."""
    feeding = {"padding": fed.padding, "max_pixels": fed.max_pixels}
    cells = [f"{values[metric]:.3f}" if metric in values else "" for metric in SHOWN]
    time = "" if seconds is None else f"{1000 * seconds:.4g}"
    how = f"{quality.name}, {fed.padding}, {fed.max_pixels:,} px"
    print(f"| {name} | {how} | {' | '.join(cells)} | {time} |", flush=True)
    return {"data": name, "quality": asdict(quality), **feeding, **values, "seconds": seconds}


def main() -> None:
    """Print a Markdown table: a row per data set and candidate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=partial(parse_data_argument, also="rendered"), action="append", required=True
    )
    parser.add_argument("--size", action="append", help="WIDTHxHEIGHT of rendered scenes")
    parser.add_argument("-n", "--scenes", type=int, default=24, help="rendered scenes per size")
    parser.add_argument("--candidate", type=parse_candidate, action="append")
    parser.add_argument("--recipe", help="the recipe whose scenes are rendered")
    parser.add_argument("--max-pixels", type=int, action="append", help="0: full size")
    parser.add_argument("--padding", choices=PADDINGS, action="append")
    parser.add_argument("-w", "--weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls; 0: no timing")
    parser.add_argument("-o", "--output", type=Path, help="JSON file")
    arguments = parser.parse_args()
    arguments.size = arguments.size or ["640x384", "1024x436", "1024x640"]
    weights = read_weights(resolve(arguments.weights))
    print(f"| data | candidate | {' | '.join(SHOWN.values())} | ms |")
    print("|---" * (len(SHOWN) + 3) + "|")
    rows = []
    candidates = arguments.candidate or list(map(parse_candidate, CANDIDATES))
    config = weights.config
    feedings = [
        replace(config, padding=padding, max_pixels=pixels)
        for padding, pixels in product(
            arguments.padding or [config.padding], arguments.max_pixels or [config.max_pixels]
        )
    ]
    for name, samples in sets(arguments):
        for quality, fed in product(candidates, feedings):
            model = load_model(replace(weights, config=fed))
            how = (arguments.device, arguments.precision)
            estimator = FlowEstimator(model, *how, quality=quality)
            score, seconds = measure(estimator, samples, arguments.repeats)
            rows.append(row(name, quality, fed, score.values, seconds))
            if arguments.output is not None:  # after each one: a run may be interrupted
                report = {"weights": weights.sha256, "torch": torch.__version__, "rows": rows}
                arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
