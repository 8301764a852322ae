"""How far the accelerated estimate is from the plain one.

    python benchmarks/equality.py DEVICE [PRECISION] NAME=PATH …

For each pair and precision: the mean distance of the two flows in px, and the share of pixels that
differ by more than 0.02 px. For each data set: the EPE of the plain backend in float32, and by how
much the accelerated one changes it. PRECISION, compared next to fp32, is that of `auto` by default.
"""

import sys

import numpy as np

import dicl_flow
from dicl_flow.data import list_pairs, parse_data_argument, read_frames
from dicl_flow.evaluation import Prediction, pool, score_predictions

device, *arguments = sys.argv[1:]
asked = "auto" if "=" in arguments[0] else arguments.pop(0)
precisions = tuple(dict.fromkeys(("fp32", dicl_flow.load(None, device, asked).precision)))
estimators = {"plain": dicl_flow.load(None, device, "fp32", "plain")}
estimators |= {name: dicl_flow.load(None, device, name, "fast") for name in precisions}

for name, root in map(parse_data_argument, arguments):
    pairs = list_pairs(name, root, needs_truth=True)
    flows = {
        way: [estimator(*read_frames(pair)).flow for pair in pairs]
        for way, estimator in estimators.items()
    }
    for index, pair in enumerate(pairs):
        plain = flows["plain"][index]
        for way in precisions:
            distance = np.linalg.norm(flows[way][index] - plain, axis=-1)
            print(
                f"{name} {pair.name} {way}: {distance.mean():.5f} px, "
                f"{(distance > 0.02).mean():.2e} of the pixels differ by more than 0.02 px"
            )
    epe = {
        way: pool(score_predictions(map(Prediction, pairs, found)).values()).values["epe"]
        for way, found in flows.items()
    }
    changes = (f"{way} {epe[way] / epe['plain'] - 1:+.3%}" for way in precisions)
    print(f"{name}: EPE {epe['plain']:.4f}, {', '.join(changes)}")
