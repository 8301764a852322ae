import copy

import torch
from torch import Tensor, nn


class WeightAverage:
    """An exponential moving average of a model's parameters; buffers are taken as they are."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move towards `model`; young averages follow faster, so that the start is forgotten."""
        decay = min(self.decay, (1 + step) / (10 + step))
        mine: list[Tensor] = list(self.model.parameters())
        theirs: list[Tensor] = list(model.parameters())
        torch._foreach_lerp_(mine, theirs, 1 - decay)
        for buffer, source in zip(self.model.buffers(), model.buffers(), strict=True):
            buffer.copy_(source)

    def state_dict(self) -> dict[str, Tensor]:
        """The averaged weights."""
        return self.model.state_dict()
