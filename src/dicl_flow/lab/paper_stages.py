"""Ablations as the paper ran them: every variant is trained in several stages on data sets."""

import gc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from ..training import Outcome, Processes, open_source, train
from ..weights import encode_weights, halve, read_weights
from .ablation import VariantFolder, first_result
from .variants import Variant


def train_stages(
    variant: Variant,
    root: Path,
    roots: Mapping[str, Path],
    device: torch.device,
    *,
    quiet: bool = False,
) -> Outcome:
    """Train each stage from the weights of the one before, or resume; then write the result.

    Checkpoints are kept until the last stage is finished: they tell which stages are.
    """
    folder = VariantFolder(root, variant)
    runs = [folder.stage(stage) for stage in variant.stages]
    previous = variant.start and variant.start.path
    for stage, run in zip(variant.stages, runs, strict=True):
        source, processes = open_source(stage, roots), Processes(device)
        outcome = train(stage, source, run, processes, initial=previous, resume=True, quiet=quiet)
        gc.collect()  # a recorded step keeps GPU memory until its reference cycle is collected
        if not outcome.finished or outcome.signal is not None:
            return replace(outcome, finished=False)  # the same command starts the next stage
        previous = run.weights
    weights = halve(read_weights(runs[-1].weights))
    folder.write(first_result(variant, weights, runs[-1].log, device), encode_weights(weights))
    for run in runs:
        run.checkpoint.unlink(missing_ok=True)
    runs[-1].weights.unlink()  # the same in float32
    return outcome
