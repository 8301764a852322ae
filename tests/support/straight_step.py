"""One training step of the authors, written straight down, without our code.

The facts are from their code: `MultiScale_UP` in loss_functions.py, `train` in main.py, and
cfgs/dicl5_kitti.yml. The network is `StraightLine`, in float64. Two pairs of 128x128, the smallest
frames on which all five levels run. (Their entropy, an input of the context nets, clamps
probabilities to 1e-9, ours and `StraightLine` do not.)

`python tests/support/straight_step.py` rewrites golden/step.npz next to it. For each parameter, in
the order of legacy_shapes.json, the file holds two numbers of its gradient, of both moments of Adam
and of the updated values: the norm, and the product with a vector made by formula (`probe`).
"""

import zlib
from functools import cache
from pathlib import Path

import numpy as np
import torch
from golden import formula
from straight_line import StraightLine, corner_resize

PATH = Path(formula.__file__).with_name("step.npz")
SIZE = 128
# the ten flows in the order of the network's output: stride 4 refined, stride 4 matched, stride 8 …
WEIGHTS = (1.0, 0.8, 0.75, 0.6, 0.5, 0.4, 0.5, 0.4, 0.5, 0.4)
REACH = (372, 372, 360, 360, 336, 336, 288, 288, 192, 192)  # px on each axis
RATE, BETAS, EPSILON = 2.5e-4, (0.9, 0.999), 1e-8  # Adam; no weight decay, no clipping
MOMENTUM = 0.1  # of batch norm's running statistics


def batch():
    """Two pairs: uint8 frames (2, H, W, 3), flow (2, 2, H, W) in px, valid (2, H, W)."""
    pairs = [formula.pair(2 * SIZE, SIZE), formula.pair(SIZE, 2 * SIZE)]
    frames = [np.stack([pairs[0][n][SIZE:, :SIZE], pairs[1][n][:SIZE, SIZE:]]) for n in range(2)]
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float64)
    # up to 400 px, on either axis: beyond the reach of one level after the other
    first = np.stack([400 * np.sin(x / 21 + y / 90), 30 * np.cos(y / 17)])
    second = np.stack([20 * np.cos(x / 13), 400 * np.sin(y / 25 - x / 70)])
    valid = np.stack([(x + 2 * y) % 5 > 0, (3 * x + y) % 7 < 2])  # more pixels of one pair
    return *frames, np.stack([first, second]), valid


def loss_terms(flows, truth, valid, weights=WEIGHTS, reaches=REACH):
    """The terms of the loss, one for each of `flows`, finest first."""
    height, width = truth.shape[-2:]
    terms = []
    for flow, weight, reach in zip(flows, weights, reaches, strict=True):
        full = corner_resize(flow, height, width)
        error_x = width / flow.shape[-1] * full[:, 0] - truth[:, 0]
        error_y = height / flow.shape[-2] * full[:, 1] - truth[:, 1]
        error = torch.sqrt(error_x**2 + error_y**2)  # (B, H, W)
        within = (truth[:, 0].abs() <= reach) & (truth[:, 1].abs() <= reach)
        error = torch.where(within, error, 0)  # beyond the reach: 0, but counted
        terms.append(weight * error[valid].mean())  # invalid: not counted
    return terms


def adam(gradient):
    """Return both moments after the first step, and what is subtracted from the parameter."""
    first, second = (1 - BETAS[0]) * gradient, (1 - BETAS[1]) * gradient**2
    mean, square = first / (1 - BETAS[0]), second / (1 - BETAS[1])
    return first, second, RATE * mean / (square.sqrt() + EPSILON)


def take_step():
    """Return what the step computes, and the state after it, by the authors' keys."""
    frames1, frames2, truth, valid = batch()
    images = [
        torch.from_numpy((frames / 255 - 0.5) / 0.5).permute(0, 3, 1, 2).clamp(-1, 1)
        for frames in (frames1, frames2)
    ]
    state = {key: value.double() for key, value in formula.state_dict().items()}
    trained = {key: value for key, value in state.items() if is_trained(key)}
    for value in trained.values():
        value.requires_grad_()
    network = StraightLine(state, training=True)
    levels = network(*images)  # coarsest first, (matched, refined)
    flows = [flow for level in reversed(levels) for flow in reversed(level)]
    terms = loss_terms(flows, torch.from_numpy(truth), torch.from_numpy(valid))
    loss = sum(terms) / len(terms)
    loss.backward()

    first, second = {}, {}
    with torch.no_grad():
        for key, value in trained.items():
            first[key], second[key], change = adam(value.grad)
            value -= change
        for key, mean, variance, count in network.statistics:
            for name, new in (("mean", mean), ("var", variance * count / (count - 1))):
                running = state[f"{key}.bn.running_{name}"]
                running += MOMENTUM * (new - running)
    return {
        "terms": torch.stack(terms).detach(),
        "loss": loss.detach(),
        "gradients": {key: value.grad for key, value in trained.items()},
        "first_moments": first,
        "second_moments": second,
        "state": {key: value.detach() for key, value in state.items() if not_counter(key)},
    }


def numbers(step):
    """The numbers that are kept: terms, loss, and two of each tensor."""
    kept = {"terms": step["terms"].numpy(), "loss": step["loss"].numpy()}
    for name in ("gradients", "first_moments", "second_moments", "state"):
        kept[name] = np.array([describe(key, tensor) for key, tensor in step[name].items()])
    return kept


def describe(key, tensor):
    """Norm and product with the probe of this key."""
    return tensor.norm().item(), (tensor.double() * probe(key, tensor.shape)).sum().item()


@cache
def probe(key, shape):
    """A vector of length 1."""
    values = np.random.RandomState(zlib.crc32(f"probe/{key}".encode())).normal(size=tuple(shape))
    return torch.from_numpy(values / np.linalg.norm(values))


def is_trained(key):
    return not_counter(key) and ".running_" not in key


def not_counter(key):
    return not key.endswith("num_batches_tracked")


if __name__ == "__main__":
    np.savez_compressed(PATH, **numbers(take_step()))
