"""Validation: the error of the weights on whole frames during training, and which were the best."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from ..config import TrainConfig
from ..data import FlowPair, list_pairs, read_sample
from ..estimation.estimator import FlowEstimator
from ..weights import Weights, load_model
from .distributed import Processes
from .recipe import find_root


@dataclass(frozen=True)
class Validated:
    """What the validations of a run have found so far."""

    step: int = 0
    """The last one; 0: none."""
    best_step: int = 0
    best_epe: float = inf

    def after(self, step: int, epe: float) -> "Validated":
        """Return what is known after another validation."""
        if epe < self.best_epe:
            return Validated(step, step, epe)
        return Validated(step, self.best_step, self.best_epe)

    def best(self) -> dict[str, int | float | None]:
        """Return step and error of the best weights, for JSON: None if there are none."""
        found = self.best_step > 0
        return {
            "best_step": self.best_step if found else None,
            "best_epe": self.best_epe if found else None,
        }


NOT_VALIDATED = Validated()


class Validation:
    """The pairs of each data set to validate on."""

    def __init__(self, pairs: Mapping[str, Sequence[FlowPair]]) -> None:
        self.pairs = pairs

    @classmethod
    def of(cls, config: TrainConfig, roots: Mapping[str, Path]) -> "Validation | None":
        """List the pairs that a recipe names; None: it does not validate."""
        if not config.validate_every:
            return None
        names = config.validation
        return cls({n: list_pairs(n, find_root(n, roots), needs_truth=True) for n in names})

    def errors(self, weights: Weights, processes: Processes) -> dict[str, float]:
        """Return the mean end-point error in px on each data set; every process takes a share.

        The weights are copied into another network: nothing of the training changes.
        """
        device = str(processes.device)
        estimator = FlowEstimator(load_model(weights), device, "fp32", "plain")
        return {name: _error(pairs, estimator, processes) for name, pairs in self.pairs.items()}


def mean_error(errors: Mapping[str, float]) -> float:
    """Return the one number by which weights are compared: the mean over the data sets."""
    return fmean(errors.values())


def _error(pairs: Sequence[FlowPair], estimator: FlowEstimator, processes: Processes) -> float:
    """Return the mean over the pairs of each pair's mean over its valid pixels.

    So the authors choose their best weights. Of dense truth in frames of one size it is the mean
    over all pixels; of KITTI it is not.
    """
    total, count = 0.0, 0.0
    for pair in pairs[processes.rank :: processes.world_size]:
        sample = read_sample(pair)
        flow = estimator(sample.image1, sample.image2).flow
        error = np.linalg.norm(flow - sample.flow, axis=-1)[sample.valid]
        if error.size:
            total, count = total + float(error.mean(dtype=np.float64)), count + 1
    if processes.world_size > 1:
        sums = torch.tensor([total, count], dtype=torch.float64, device=processes.device)
        total, count = processes.sum(sums).tolist()
    return total / max(count, 1)
