"""Time and memory of each host and matcher: a training step, an estimate, and the matching in it.

    python benchmarks/host_costs.py -o costs.json           # a GPU
    python benchmarks/host_costs.py --rehearse              # a CPU, tiny frames: means nothing

One pair, float32. Training: a step of a 384x256 crop, the most that torch allocated, weights and
optimizer included, by the plain network and by the recorded one. Estimate: the plain network on
512x384, the frames of FlyingChairs. Matching: the part of that from the features of both frames to
what the flow is read off, all levels one after the other: in VCN the products and their separable
4-D convolutions, in the others the matcher and, if there is one, DAP. Paper: on a GTX 1080 Ti.
"""

import argparse
import gc
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import date
from itertools import repeat
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dicl_flow.config import AugmentConfig, DataConfig, ModelConfig, TrainConfig
from dicl_flow.data import FlowBatch
from dicl_flow.estimation.compute import choose_device
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.files import write_files
from dicl_flow.lab.layers import peak_bytes
from dicl_flow.lab.speed import Case, describe_machine, median_seconds, moving_pattern
from dicl_flow.models import FlowNetwork, build, count_parameters
from dicl_flow.models.blocks import SLOPE
from dicl_flow.models.dicl import DiclLevel
from dicl_flow.models.vcn import VcnLevel
from dicl_flow.ops import normalize
from dicl_flow.training import Processes, Trainer

NETWORKS = {
    "dot product": ModelConfig(matcher="dot", projection=False),
    "DICL": ModelConfig(),
    "VCN": ModelConfig(host="vcn"),
    "VCN + DICL": ModelConfig(host="vcn", matcher="dicl"),
    "PWC-Net": ModelConfig(host="pwcnet"),
    "PWC-Net + DICL": ModelConfig(host="pwcnet", matcher="dicl"),
}
PAPER = {
    "DICL": {"training_gb": 1.1, "estimate_seconds": 0.08},
    "VCN": {"training_gb": 1.9, "estimate_seconds": 0.18},
}
CROP, CHAIRS, TINY = (256, 384), (384, 512), (128, 256)
GIB = 2**30


def training(config: ModelConfig, size: tuple[int, int], backend: str, device: torch.device) -> Any:
    """The memory and the time of a step of one pair."""
    settings = TrainConfig("costs", (DataConfig("rendered"),), batch=1, backend=backend)
    settings = replace(settings, model=config, augment=AugmentConfig.crop_only(size))
    images = torch.rand(2, 1, 3, *size, device=device)
    truth = torch.randn(1, 2, *size, device=device)
    batch = FlowBatch(*images, truth, torch.ones_like(truth[:, 0], dtype=torch.bool))
    trainer = Trainer(settings, Processes(device))
    trainer.train_step(repeat(batch), 0.0)  # Adam allocates its state
    before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    peak = before + peak_bytes(lambda: trainer.train_step(repeat(batch), 0.0), device)
    seconds = median(timed(trainer, batch) for _ in range(5))
    return {"gib": peak / GIB, "milliseconds": 1000 * seconds}


def timed(trainer: Trainer, batch: FlowBatch) -> float:
    start = perf_counter()
    trainer.train_step(repeat(batch), 0.0)  # waits for the device
    return perf_counter() - start


def estimate(network: FlowNetwork, images: tuple[Tensor, Tensor], device: torch.device) -> Any:
    """The memory and the time of an estimate."""
    estimator = FlowEstimator(network, str(device), "fp32", "plain")
    call = lambda: estimator.estimate(*images)[0]  # noqa: E731
    call()
    return {"gib": peak_bytes(call, device) / GIB, **times(call, device)}


def times(call: Any, device: torch.device) -> dict[str, float]:
    repeats = 20 if device.type == "cuda" else 2
    return {"milliseconds": 1000 * median_seconds(call, device, repeats)}


@torch.inference_mode()
def matching(network: FlowNetwork, images: tuple[Tensor, Tensor], device: torch.device) -> Any:
    """The memory of the level that needs most, and the time of all levels."""
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    with ExitStack() as hooks:
        for stride, level in network.levels.items():
            hook = level.matcher.register_forward_pre_hook(
                lambda _, features, stride=stride: kept.update({int(stride): features})
            )
            hooks.callback(hook.remove)
        network(*map(normalize, images))
    total, most = 0.0, 0
    for stride, features in kept.items():
        level = network.levels[str(stride)]
        call = lambda level=level, features=features: match(level, *features)  # noqa: E731
        call()
        most = max(most, peak_bytes(call, device))
        total += times(call, device)["milliseconds"]
    return {"gib": most / GIB, "milliseconds": total}


def match(level: Any, features1: Tensor, features2: Tensor) -> Tensor:
    """Features of both frames, the second ones warped -> what the flow is read off."""
    volume = level.matcher(features1, features2)
    if isinstance(level, VcnLevel):
        return level.scores(level.filter(F.leaky_relu(volume, SLOPE)))
    return level.projection(volume.squeeze(1)) if isinstance(level, DiclLevel) else volume


def measure(device: torch.device, crop: Any, frame: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every network, with the plain steps and, on a GPU, with the recorded ones."""
    backends = ["plain", "fused"] if device.type == "cuda" else ["plain"]
    images = tuple(image.to(device) for image in moving_pattern(Case(frame[1], frame[0])))
    for name, config in NETWORKS.items():
        network = build(config).to(device).eval()
        found: dict[str, Any] = {"parameters": count_parameters(network, inference=True)}
        found["estimate"] = estimate(network, images, device)
        found["matching"] = matching(network, images, device)
        del network
        found["training"] = {}
        for backend in backends:
            found["training"][backend] = training(config, crop, backend, device)
            gc.collect()  # a recorded step keeps memory until its reference cycle is collected
        yield name, found


def markdown(document: dict[str, Any]) -> str:
    """Return the table of the document."""
    backends = list(next(iter(document["networks"].values()))["training"])
    heads = [
        *(f"training, {b}, GiB" for b in backends),
        "estimate, ms",
        "GiB",
        "matching, ms",
        "GiB",
    ]
    lines = [f"| one pair, float32 | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name, found in document["networks"].items():
        cells = [f"{found['training'][backend]['gib']:.2f}" for backend in backends]
        for part in ("estimate", "matching"):
            cells += [f"{found[part]['milliseconds']:.1f}", f"{found[part]['gib']:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table; write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rehearse", action="store_true", help="tiny frames, on the CPU")
    parser.add_argument("-o", "--output", type=Path, help="JSON file")
    arguments = parser.parse_args()
    device = choose_device("cpu" if arguments.rehearse else arguments.device)
    crop, frame = (TINY, TINY) if arguments.rehearse else (CROP, CHAIRS)
    document = {
        **describe_machine(device),
        "date": date.today().isoformat(),
        "training_crop": [crop[1], crop[0]],
        "frame": [frame[1], frame[0]],
        "paper": PAPER,
        "networks": {},
    }
    for name, found in measure(device, crop, frame):
        print(f"{name}: {found}", file=sys.stderr, flush=True)
        document["networks"][name] = found
        if arguments.output is not None:
            write_files({arguments.output: f"{json.dumps(document, indent=1)}\n".encode()})
    print(markdown(document), end="")


if __name__ == "__main__":
    main()
