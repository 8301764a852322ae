import copy

import torch
from torch import Tensor, nn


class WeightAverage:
    """An exponential moving average of a model's parameters; buffers are taken as they are."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    def rate(self, step: int) -> float:
        """How far to follow at a step; young averages follow faster, to forget the start."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def follow(self, model: nn.Module, rate: Tensor | float) -> None:
        """Move towards `model`."""
        mine: list[Tensor] = list(self.model.parameters())
        theirs: list[Tensor] = list(model.parameters())
        steps = torch._foreach_sub(theirs, mine)
        torch._foreach_mul_(steps, rate)
        torch._foreach_add_(mine, steps)

    @torch.no_grad()
    def state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        """The averaged parameters with the buffers of `model`."""
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)
        return self.model.state_dict()
