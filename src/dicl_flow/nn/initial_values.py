"""The values with which the weights of a network start, and how to do without them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from torch import nn
from torch.overrides import TorchFunctionMode

_DRAWS = (nn.init.kaiming_uniform_, nn.init.uniform_)  # what convolutions start with


def initialize(model: nn.Module, fan: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Kaiming normal (ReLU) for every convolution; batch norms keep torch's 1 and 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Conv3d):
            nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class without_values(TorchFunctionMode):  # noqa: N801 - used as `with without_values():`
    """In this context, in this thread, layers are made without drawing random numbers.

    Drawing millions of them takes longer than reading weights that replace them. The meta device
    would avoid it as well, but makes torch import its decompositions, which takes a second.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Leave the tensor of a draw as it is; compute anything else."""
        given = kwargs or {}
        if func in _DRAWS:
            return args[0] if args else given["tensor"]
        return func(*args, **given)
