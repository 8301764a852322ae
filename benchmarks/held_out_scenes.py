"""The error of weights on rendered scenes that were not trained on, by kind of scene.

    python benchmarks/held_out_scenes.py HELD_OUT_PHOTOS WEIGHTS … -n 16 --device cuda -o FILE.json

For layers and each kind of place: the mean EPE in px of `-n` batches of four frames of 640x384, and
the share of pixels wrong by more than 10 px. Every network sees the same scenes, in float32.
"""

import argparse
import json
from pathlib import Path

import torch

from dicl_flow.config import PLACES, RenderConfig
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.render import held_out_renderer
from dicl_flow.weights import load_model, read_weights, resolve

SIZE = (384, 640)
BATCH = 4
WRONG = 10.0  # px


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("weights", nargs="+")
    parser.add_argument("-n", "--batches", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    networks = {name: load_model(read_weights(resolve(name))) for name in arguments.weights}
    estimators = {
        name: FlowEstimator(network, arguments.device, "fp32") for name, network in networks.items()
    }
    layers = RenderConfig(depth_share=0.35, large_share=0.25, large_factor=3.0)
    kinds = {"layers": layers, **{place: layers.only(place) for place in PLACES}}
    result = {name: {} for name in estimators}
    for kind, config in kinds.items():
        renderer = held_out_renderer(arguments.photos, SIZE, arguments.device, config=config)
        totals = {name: torch.zeros(3, dtype=torch.float64) for name in estimators}
        for number in range(arguments.batches):
            scene = renderer.render(BATCH, number)
            for name, estimator in estimators.items():
                flow = estimator.estimate(scene.image1, scene.image2)[0]
                error = (flow - scene.flow).norm(dim=1)[scene.valid]
                found = error.sum(), (error > WRONG).sum(), scene.valid.sum()
                totals[name] += torch.stack([value.double() for value in found]).cpu()
        for name, (error, wrong, count) in totals.items():
            epe, share = float(error / count), float(wrong / count)
            result[name][kind] = {"epe": epe, "wrong": share}
            print(f"{kind:10} {epe:6.2f} px  {100 * share:5.1f} %  {name}", flush=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
