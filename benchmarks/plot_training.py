"""Plot the training curve of several stages.

    python benchmarks/plot_training.py OUT.svg RUN …

A RUN is a folder that contains log.jsonl and is named after its recipe; give the stages in order.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from dicl_flow.training import read_recipe

output, *runs = map(Path, sys.argv[1:])
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
pairs = 0
for number, run in enumerate(runs):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "epe" in line]  # not those of validations
    batch = read_recipe(run.name, []).batch
    counts = [line.get("pairs", batch * line["step"]) for line in lines]
    seen = np.array(
        [line.get("pairs_total", pairs + n) for line, n in zip(lines, counts, strict=True)]
    )
    epe = np.array([line["epe"] for line in lines])
    axes.plot(seen / 1000, epe, alpha=0.3, color=f"C{number}")
    smooth = np.convolve(epe, np.ones(9) / 9, "valid")
    axes.plot(seen[4:-4] / 1000, smooth, color=f"C{number}", label=run.name)
    pairs = seen[-1]
axes.set(xlabel="rendered pairs seen, thousands", ylabel="training EPE, px", yscale="log")
axes.set_yticks([2, 3, 5, 10, 20], ["2", "3", "5", "10", "20"])
axes.minorticks_off()
axes.legend(frameon=False)
axes.grid(alpha=0.3)
figure.savefig(output)
