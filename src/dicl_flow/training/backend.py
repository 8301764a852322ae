"""The choice of how a training step is computed: plain, or fused on one CUDA GPU."""

from importlib.util import find_spec

from ..config import TrainConfig
from ..errors import InputError
from ..models import FlowNetwork
from .distributed import Processes


def choose_backend(config: TrainConfig, processes: Processes) -> str:
    """Return "plain" or "fused", which is refused where it cannot run."""
    obstacle = _obstacle(processes)
    if config.backend == "auto":
        whole = config.optimizer.accumulate == 1
        able = not obstacle and whole and find_spec("triton") is not None
        return "fused" if able else "plain"
    if config.backend == "fused" and obstacle:
        raise InputError(obstacle)
    return config.backend


def _obstacle(processes: Processes) -> str:
    """Why these processes cannot train with the fused backend; "" if they can."""
    if not processes.on_gpu:
        return "backend='fused' trains on a CUDA GPU; elsewhere: `changes=['backend=plain']`"
    if processes.world_size > 1:
        return "backend='fused' trains on one GPU; use backend='plain' with torchrun"
    return ""


def accelerated(model: FlowNetwork) -> FlowNetwork:
    """Return the same network with accelerated parts."""
    from ..accelerated.training import accelerate

    return accelerate(model)
