"""Precision and recall of the estimated occlusion on rendered scenes, for several thresholds.

python benchmarks/occlusion.py PHOTOS|procedural [-w WEIGHTS] [-n SCENES] [--seed SEED]
"""

import argparse
from pathlib import Path

import torch

import dicl_flow
from dicl_flow.config import RenderConfig
from dicl_flow.data import collate
from dicl_flow.estimation.confidence import find_occlusion
from dicl_flow.render import Renderer, load_textures

CANDIDATES = [(0.01, 0.5), (0.01, 4.0), (0.05, 1.0), (0.05, 4.0), (0.05, 16.0), (0.1, 4.0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos")
    parser.add_argument("-w", "--weights")
    parser.add_argument("-n", "--scenes", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1000)
    options = parser.parse_args()
    estimator = dicl_flow.load(options.weights)
    folder = None if options.photos == "procedural" else Path(options.photos)
    textures = load_textures(folder, estimator.device, options.seed)
    renderer = Renderer(RenderConfig(), (384, 512), textures, estimator.device, options.seed)
    counts = torch.zeros(len(CANDIDATES), 3)  # found, true, both
    for number in range(options.scenes):
        rendered = renderer.render(1, number)
        batch = collate(rendered.to_samples())
        (flow, _), (backward, _) = estimator.estimate_both(batch.image1, batch.image2)
        for row, thresholds in enumerate(CANDIDATES):
            found = find_occlusion(flow, backward, *thresholds)[:, 0]
            true = rendered.occluded
            counts[row] += torch.tensor([found.sum(), true.sum(), (found & true).sum()])
    print("relative  absolute px²  precision  recall    F1")
    for (relative, absolute), (found, true, both) in zip(CANDIDATES, counts.tolist(), strict=True):
        line = f"{relative:8g}  {absolute:12g}  {both / found:9.3f}  {both / true:6.3f}"
        print(f"{line}  {2 * both / (found + true):.3f}")


if __name__ == "__main__":
    main()
