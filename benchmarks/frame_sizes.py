"""The EPE of networks on pairs that are resized to several sizes.

python benchmarks/frame_sizes.py runs/ablation/*/weights.safetensors --data kitti15=KITTI2015

Prints the error of the coarsest level → the error of the final flow.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from dicl_flow.data import collate, list_pairs, read_sample
from dicl_flow.data.datasets import parse_data_argument
from dicl_flow.lab.volumes import weights_name
from dicl_flow.models import FlowNetwork
from dicl_flow.ops import normalize, resize_flow_pixels, resize_pixels
from dicl_flow.weights import load_model, read_weights, resolve

SIZES = ["256x256", "384x256", "512x256", "384x384", "256x128", "384x128", "512x128"]


@torch.no_grad()
def errors(model: FlowNetwork, name: str, root: Path, size: tuple[int, int]) -> Iterator[Tensor]:
    """For each pair: the EPE of zero flow, of the coarsest level and of the final flow."""
    for pair in list_pairs(name, root, needs_truth=True):
        batch = collate([read_sample(pair)])
        frames = (resize_pixels(normalize(i), size) for i in (batch.image1, batch.image2))
        levels = model(*frames)
        flows = [model.upsample(level.refined, size) for level in (levels[0], levels[-1])]
        height, width = batch.flow.shape[-2:]
        flows = [resize_flow_pixels(flow, (height, width)) for flow in flows]
        still = torch.zeros_like(batch.flow)
        wrong = torch.stack([(flow - batch.flow).norm(dim=1) for flow in (still, *flows)])
        yield wrong[:, batch.valid].mean(1)


def main() -> None:
    """Print a Markdown table: a row per network and size, a column per data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", nargs="+")
    parser.add_argument("--data", type=parse_data_argument, action="append", required=True)
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="WIDTHxHEIGHT")
    arguments = parser.parse_args()
    print(f"| weights | fed as | {' | '.join(name for name, _ in arguments.data)} |")
    print("|---" * (2 + len(arguments.data)) + "|")
    for path in arguments.weights:
        model = load_model(read_weights(resolve(path))).eval()
        for size in arguments.sizes:
            width, height = map(int, size.split("x"))
            cells = []
            for name, root in arguments.data:
                found = torch.stack([*errors(model, name, root, (height, width))]).mean(0)
                still, coarsest, finest = found.tolist()
                cells.append(f"{coarsest:.1f} → {finest:.2f} (zero flow {still:.1f})")
            print(f"| {weights_name(path)} | {size} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
