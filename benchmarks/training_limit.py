"""The least time that a training step can take: its tensor products, and its traffic to memory.

    python benchmarks/training_limit.py [1024x640 [6]]          # WIDTHxHEIGHT, pairs
    python benchmarks/training_limit.py 1024x640 6 700e12 4.2e12

Counts every convolution, forward, for its input and for its weight, and the numbers of bfloat16
that it and batch norm read and write, for batch norm needs the whole of a layer before it can
normalise any of it. A layer takes the longer of the two. Losses, resizing, concatenations, the
optimizer and rendering are not counted. The rates (operations and bytes per second) are measured
with a matrix product and a copy on this machine's CUDA device, or given.
"""

import sys
from collections import defaultdict

import torch
from torch import nn

from dicl_flow.config import ModelConfig
from dicl_flow.lab.speed import machine_rates
from dicl_flow.models import build
from dicl_flow.models.blocks import ConvBlock
from dicl_flow.models.matching import MatchingNet, PairwiseMatcher

BYTES = 2
# How often a step reads or writes the input of a convolution: forward, for the gradient of the
# weight, and its own gradient; and the output: written, read for the gradients of input and weight.
INPUT, OUTPUT = 3, 3
# Batch norm: read for the statistics, read, written; twice read with its gradient, written.
NORM = 8
# Factored, the first layer of the matching net and its norm are one: written, gradient read twice.
FIRST = 3
PARTS = {"feature net": "features", "matching nets": "matcher", "context nets": "context"}

size = sys.argv[1] if len(sys.argv) > 1 else "1024x640"
width, height = map(int, size.split("x"))
pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 6
given = tuple(map(float, sys.argv[3:5]))
operations, bandwidth = given or machine_rates(torch.device("cuda"), torch.bfloat16)

with torch.device("meta"):
    model = build(ModelConfig())
normed = {block.conv for block in model.modules() if isinstance(block, ConvBlock)}
first = {
    matcher.net.first.conv: (2 * matcher.radius + 1) ** 2
    for matcher in model.modules()
    if isinstance(matcher, PairwiseMatcher) and isinstance(matcher.net, MatchingNet)
}
totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])


def count(layer, inputs, output):
    pixels = inputs[0] if isinstance(layer, nn.ConvTranspose2d) else output
    repeats = first.get(layer, 1)
    products = 3 * 2 * pixels.numel() // pixels.shape[1] * layer.weight.numel() / repeats
    moved = INPUT * inputs[0].numel() / repeats
    moved += output.numel() * (FIRST if layer in first else OUTPUT + NORM * (layer in normed))
    times = products / operations, BYTES * moved / bandwidth
    part = next((part for part in PARTS if PARTS[part] in names[layer]), "projections")
    for index, value in enumerate((*times, max(times))):
        totals[part][index] += 1000 * value


names = {module: name for name, module in model.named_modules()}
for module in names:
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        module.register_forward_hook(count)
with torch.device("meta"):
    image = torch.empty(pairs, 3, height, width)
    model(image, image)

print(f"{pairs} pairs of {size}, {operations / 1e12:.0f} TFLOP/s, {bandwidth / 1e12:.2f} TB/s")
print(f"{'':<16}{'products':>10}{'memory':>10}{'longer':>10}  ms")
totals["all"] = [sum(column) for column in zip(*totals.values(), strict=True)]
for part, times in totals.items():
    print(f"{part:<16}" + "".join(f"{time:10.1f}" for time in times))
print(f"at most {pairs * width * height / totals['all'][2] / 1000:.0f} megapixels/s")
