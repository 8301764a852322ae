"""What each level contributes on rendered scenes that were not trained on.

    python benchmarks/level_errors.py PHOTOS DEVICE BATCHES WEIGHTS …

For frames of 384x640, 640x1024 and 1152x1920: the mean error in px of zero flow, then of each
level's flow, matched / refined, coarsest first; held-out scenes, four a batch, one of the largest.
"""

import sys
from collections import Counter
from math import prod
from pathlib import Path

import torch

from dicl_flow.ops import normalize
from dicl_flow.render import held_out_renderer
from dicl_flow.training.monitoring import ZERO, level_gauges
from dicl_flow.training.recipe import freeze_norms
from dicl_flow.weights import load_model, read_weights, resolve

photos, place, batches, *names = sys.argv[1:]
device = torch.device(place)
models = {name: load_model(read_weights(resolve(name))).to(device).train() for name in names}
for model in models.values():
    freeze_norms(model)

for size in ((384, 640), (640, 1024), (1152, 1920)):
    renderer = held_out_renderer(Path(photos), size, device)
    totals = {name: Counter[str]() for name in names}
    for number in range(int(batches)):
        batch = renderer.render(4 if prod(size) < 700_000 else 1, number).to_batch()
        for name, model in models.items():
            with torch.no_grad():
                levels = model(normalize(batch.image1), normalize(batch.image2))
            totals[name].update(level_gauges(levels, batch, model.config.strides, model.upsample))
    for name, total in totals.items():
        errors = [f"{value / int(batches):.2f}" for key, value in total.items() if "_error" in key]
        pairs = zip(errors[1::2], errors[2::2], strict=True)
        found = "  ".join(f"{matched} / {refined}" for matched, refined in pairs)
        print(f"{size}  zero {total[ZERO] / int(batches):.1f}  {found}  {name}", flush=True)
