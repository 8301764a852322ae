import copy

import torch
from torch import Tensor, nn


class WeightAverage:
    """An exponential moving average of a model's parameters and of its norms' statistics.

    In training a norm divides a rare scene by the variance of a batch with that scene in it,
    later by these statistics; the last few batches may have seen no such scene.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    def rate(self, step: int) -> float:
        """How far to follow at a step; young averages follow faster, to forget the start."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def follow(self, model: nn.Module, rate: Tensor | float) -> None:
        """Move towards `model`."""
        mine, theirs = _numbers(self.model), _numbers(model)
        steps = torch._foreach_sub(theirs, mine)
        torch._foreach_mul_(steps, rate)
        torch._foreach_add_(mine, steps)

    @torch.no_grad()
    def state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        """The averages; what is counted in whole numbers is taken from `model`."""
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            if not mine.is_floating_point():
                mine.copy_(theirs)
        return self.model.state_dict()


def _numbers(model: nn.Module) -> list[Tensor]:
    statistics = (buffer for buffer in model.buffers() if buffer.is_floating_point())
    return [*model.parameters(), *statistics]
