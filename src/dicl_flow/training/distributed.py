"""Training with several processes: gradients and batch statistics are those of one process."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import InputError

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Processes:
    """One process among those that torchrun started."""

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that prints and writes."""
        return self.rank == 0

    @property
    def on_gpu(self) -> bool:
        """Whether they train on CUDA devices."""
        return self.device.type == "cuda"

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes of a tensor that needs no gradient."""
        value = value.detach().clone()
        if self.world_size > 1:
            dist.all_reduce(value)
        return value

    def average(self, value: Tensor) -> Tensor:
        """The mean over all processes of a tensor that needs no gradient."""
        return self.sum(value) / self.world_size

    def any(self, wish: bool) -> bool:
        """Whether `wish` is true in any process; all processes wait for each other here."""
        if self.world_size == 1:
            return wish
        return bool(self.sum(torch.tensor(float(wish), device=self.device)).item())

    def share(self, batch: int, parts: int) -> int:
        """Number of pairs that this process takes at a time; a batch is computed in `parts`."""
        share, rest = divmod(batch, self.world_size * parts)
        if rest or not share:
            among = f"{self.world_size} processes and {parts} accumulation steps"
            raise InputError(f"a batch of {batch} cannot be divided among {among}")
        return share


def join(device: torch.device) -> Processes:
    """Join the group of processes that torchrun has set up; without torchrun, a group of one."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        return Processes(device)
    processes = Processes(device, int(os.environ["RANK"]), world_size)
    if processes.on_gpu:
        processes = replace(processes, device=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
        torch.cuda.set_device(processes.device)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    return processes


def leave(processes: Processes) -> None:
    """Leave the group, if there is one."""
    if processes.world_size > 1:
        dist.destroy_process_group()


def share_norms(model: Model, processes: Processes) -> Model:
    """Compute batch norm over all processes; state-dict keys stay the same."""
    if processes.world_size == 1:
        return model
    if processes.on_gpu:
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is nn.BatchNorm2d:
                shared = SharedBatchNorm2d(child.num_features, child.eps, child.momentum)
                shared.load_state_dict(child.state_dict(), strict=True)
                setattr(module, name, shared)
    return model


class SharedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm over all processes on CPUs, which SyncBatchNorm does not support."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same shape."""
        if not self.training:
            return super().forward(x)
        count = _sum_over_processes(x.new_tensor(x.numel() / x.shape[1]))
        mean = _sum_over_processes(x.sum((0, 2, 3))) / count
        centred = x - mean[:, None, None]
        variance = _sum_over_processes(centred.square().sum((0, 2, 3))) / count
        self._remember(mean, variance * count / (count - 1))
        scale = self.weight * (variance + self.eps).rsqrt()
        return centred * scale[:, None, None] + self.bias[:, None, None]

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        assert self.momentum is not None
        for name, value in (("running_mean", mean), ("running_var", variance)):
            buffer = self.get_buffer(name)
            buffer.lerp_(value.to(buffer.dtype), self.momentum)
        self.get_buffer("num_batches_tracked").add_(1)


class _Sum(torch.autograd.Function):
    """all_reduce with a gradient: the sum of the gradients of all processes."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradient)


_sum_over_processes: Callable[[Tensor], Tensor] = _Sum.apply
