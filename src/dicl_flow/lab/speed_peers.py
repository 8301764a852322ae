"""Other methods that are installed, timed by `dicl-flow bench` on the same frames."""
# mypy: disable-error-code="import-untyped,import-not-found"

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from ..estimation.compute import PRECISIONS
from ..evaluation.methods import dis

Call: TypeAlias = Callable[[], object]
_RAFT_MULTIPLE = 8  # of the sides of its frames


class Peer(NamedTuple):
    """Another method, and where it computes."""

    name: str
    precision: str
    device: torch.device
    prepare: Callable[[Tensor, Tensor], Call]
    """Two (B, 3, H, W) in [0, 1], on that device -> what is to be timed."""


def find_peers(device: torch.device, precisions: Iterable[str]) -> list[Peer]:
    """OpenCV's DIS, on the CPU, and torchvision's RAFT if it is there; on CPUs in float32."""
    peers = [Peer("dis", "uint8", torch.device("cpu"), _dis)]
    if find_spec("torchvision") is not None:
        names = precisions if device.type == "cuda" else ["fp32"]
        peers += [Peer("raft", name, device, _Raft(device, name)) for name in names]
    return peers


def _dis(image1: Tensor, image2: Tensor) -> Call:
    method = dis()
    bytes1, bytes2 = (
        (255 * image).round().byte().permute(0, 2, 3, 1).numpy() for image in (image1, image2)
    )
    return lambda: [*map(method, bytes1, bytes2)]


class _Raft:
    """torchvision's large RAFT with random weights: it takes as long as with trained ones."""

    def __init__(self, device: torch.device, precision: str) -> None:
        self.device, self.dtype = device, PRECISIONS[precision]

    def __call__(self, image1: Tensor, image2: Tensor) -> Call:
        from torchvision.models.optical_flow import raft_large

        network = raft_large(weights=None, progress=False).to(self.device).eval()
        return lambda: self._run(network, image1, image2)

    @torch.inference_mode()
    def _run(self, network: torch.nn.Module, *images: Tensor) -> Tensor:
        height, width = images[0].shape[-2:]
        sides = (0, -width % _RAFT_MULTIPLE, 0, -height % _RAFT_MULTIPLE)
        padded = [F.pad(2 * image - 1, sides, "replicate") for image in images]
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            flow: Tensor = network(*padded)[-1]
        return flow[..., :height, :width]
