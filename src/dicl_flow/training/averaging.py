"""An exponential moving average of the weights that are trained."""

import copy

import torch
from torch import Tensor, nn


class WeightAverage:
    """An exponential moving average of a model's parameters and of its batch norm statistics.

    In training, batch norm divides a rare scene by the variance of a batch that contains it, at
    inference by these statistics; the last few batches may not have contained such a scene.
    """

    # Not torch.optim.swa_utils.AveragedModel: its decay is a number, fixed when it is made, and
    # each update asks the device how many there were. A recorded step reads the rate on the device,
    # where it rises during warm-up and is 0 after a step that is not finite.

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    def rate(self, step: int) -> float:
        """How far to follow at a step; at first faster, to forget the initial weights."""
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
        """The averages; integer buffers are copied from `model`."""
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            if not mine.is_floating_point():
                mine.copy_(theirs)
        return self.model.state_dict()


def _numbers(model: nn.Module) -> list[Tensor]:
    statistics = (buffer for buffer in model.buffers() if buffer.is_floating_point())
    return [*model.parameters(), *statistics]
