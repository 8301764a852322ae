"""Images in, flow out: the interface for Python users."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..accelerated.inference import warn_if_emulated
from ..config import NORMAL, Calibration, Quality, find_quality
from ..errors import InputError
from ..files import Array
from ..models import FlowNetwork
from ..ops import resize
from ..weights import load_model, read_weights, resolve
from .confidence import find_cues
from .engines import choose_compute, make_engine
from .feeding import Feeding, size_of
from .gate import gate
from .inputs import ImageInput, flow_batch, image_batch
from .passes import Found, Passes
from .result import Estimate, FlowTensors, pack, unpack
from .result import FlowResult as FlowResult
from .tiling import Tiles, describe, in_tiles


class FlowEstimator:
    """A network with all that lies between it and a user: reading, normalising, padding, devices.

    >>> estimator = dicl_flow.load("weights.safetensors", device="cuda", precision="fp16")
    >>> flow = estimator("frame1.png", "frame2.png").flow
    """

    def __init__(
        self,
        model: FlowNetwork,
        device: str = "auto",
        precision: str = "auto",
        backend: str = "auto",
        memory_limit: int | None = None,
        calibration: Calibration | None = None,
        quality: str | Quality = NORMAL,
        *,
        full_size: bool = False,
    ) -> None:
        self.quality = find_quality(quality)
        self.quality.check_for(model.config)
        self.calibration = calibration
        self.compute = choose_compute(model.config, device, precision, backend, memory_limit)
        self.engine = make_engine(model, self.compute)
        auto = self.engine.best_precision().value
        warn_if_emulated(precision, self.device, f"precision 'auto' would choose {auto}")
        fed = model.config.at_full_size() if full_size else model.config
        self.feedings = [Feeding.of(fed, scale) for scale in self.quality.scales]
        self._passes = Passes(self.engine, self.feedings, self.quality.start)
        self._connect()

    def _connect(self) -> None:
        """Make what serves this process alone: recordings, and what is known of its memory."""
        self._confidence = self.engine.confidence(self.calibration, self.feedings[-1].scale)
        self._one_way = self.engine.record(self._estimate_whole)
        self._both_ways = self.engine.record(self._estimate_both)
        self._tiles = Tiles(self.engine, max(self.feedings, key=lambda feeding: feeding.scale))

    @property
    def model(self) -> FlowNetwork:
        """The network that computes: an accelerated version of the one given, or that itself."""
        return self.engine.network

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.compute.device

    @property
    def backend(self) -> str:
        """Which implementation runs: "fast" or "plain"."""
        return self.compute.backend

    @property
    def precision(self) -> str:
        """In which number format it computes."""
        return self.compute.precision

    @property
    def memory_limit(self) -> int | None:
        """Bytes that an estimate may use; None: most of what is free."""
        return self.compute.memory_limit

    def __getstate__(self) -> dict[str, Any]:
        """For pickles, which another process may open: all but what `_connect` makes."""
        made = ("_confidence", "_one_way", "_both_ways", "_tiles")
        return {name: value for name, value in vars(self).items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._connect()

    def __call__(
        self,
        image1: ImageInput,
        image2: ImageInput,
        *,
        backward: bool = False,
        initial: Array | Tensor | None = None,
    ) -> FlowResult:
        """Estimate where each pixel of `image1` went in `image2`.

        Paths, arrays (H, W, 3), tensors (3, H, W), or batches of them; see
        `estimation.inputs.image_batch` for all that is understood. `backward` asks for the
        flow of the pixels of `image2` as well, and for what is occluded in either. `initial` is
        a flow to begin from, of the shape of the one returned: the coarse levels are skipped.
        """
        return self.tensors(image1, image2, backward=backward, initial=initial).to_result()

    def tensors(
        self,
        image1: ImageInput,
        image2: ImageInput,
        *,
        backward: bool = False,
        initial: Array | Tensor | None = None,
    ) -> FlowTensors:
        """Estimate as a call does, but leave the result on the device, as tensors."""
        (batch1, is_batch), (batch2, _) = (
            image_batch(image, self.device) for image in (image1, image2)
        )
        if batch1.shape != batch2.shape:
            raise InputError(
                f"the two images must have one size, got {describe(batch1)} and {describe(batch2)}"
            )
        if initial is not None and backward:
            raise InputError(
                "the flow to begin from says nothing of the backward flow; leave out `backward`, "
                "and estimate that flow by a call of its own"
            )
        begin = [] if initial is None else [flow_batch(initial, batch1)]
        estimates = unpack(self.answer(batch1, batch2, *begin, backward=backward))
        # copies, made here, are ordinary tensors: those of inference mode cannot be changed
        found = FlowTensors.of(*(Estimate(*(part.clone() for part in e)) for e in estimates))
        return found if is_batch else found[0]

    def estimate(self, image1: Tensor, image2: Tensor, initial: Tensor | None = None) -> Estimate:
        """Two (B, 3, H, W) in [0, 1] -> the flow of the pixels of `image1`, on the device.

        Frames for which the memory does not suffice are cut into overlapping tiles. `initial`
        is a flow (B, 2, H, W) to start from.
        """
        begin = [] if initial is None else [initial]
        (estimate,) = unpack(self.answer(image1, image2, *begin))
        return estimate

    def estimate_both(self, image1: Tensor, image2: Tensor) -> tuple[Estimate, Estimate]:
        """As `estimate`, then the flow from `image2` to `image1`."""
        forward, backward = unpack(self.answer(image1, image2, backward=True))
        return forward, backward

    @torch.inference_mode()
    def answer(
        self, image1: Tensor, image2: Tensor, *initial: Tensor, backward: bool = False
    ) -> Tensor:
        """The packed estimate of one direction or both: (B, 3 or 6, H, W)."""
        compute = self._both_ways if backward else self._one_way
        images = [image.to(self.device) for image in (image1, image2, *initial)]
        return in_tiles(compute, self.tile(images[0]), *images)

    @torch.inference_mode()
    def measure(self, image1: Tensor, image2: Tensor) -> tuple[Tensor, Tensor]:
        """Flow (B, 2, H, W) and cues (B, 7, H, W), at the size of the frames: to calibrate."""
        found = self._passes.one_way(image1.to(self.device), image2.to(self.device))
        (levels, fitted1, fitted2), feeding = found.view, self.feedings[-1]
        cues = resize(find_cues(levels, fitted1, fitted2, feeding.scale), size_of(fitted1))
        return found.flow, feeding.unfit(cues, size_of(image1))

    def fits(self, image: Tensor) -> bool:
        """Whether a pair like (B, 3, H, W) `image` is computed in one piece."""
        return self.tile(image) == size_of(image)

    def tile(self, image: Tensor) -> tuple[int, int]:
        """(height, width) of the tiles in which a pair like (B, 3, H, W) `image` is computed."""
        return self._tiles.size(image)

    def _estimate_whole(self, image1: Tensor, image2: Tensor, *initial: Tensor) -> Tensor:
        """(B, 3, H, W) images in [0, 1] -> the packed estimate (B, 3, H, W)."""
        return self._finish(self._passes.one_way(image1, image2, *initial))

    def _estimate_both(self, image1: Tensor, image2: Tensor) -> Tensor:
        """The same for both directions, one after the other: (B, 6, H, W)."""
        return torch.cat([*map(self._finish, self._passes.both_ways(image1, image2))], 1)

    def prepare(self, image: Tensor) -> list[Tensor]:
        """(B, 3, H, W) in [0, 1] -> what `match` needs: as the network sees it, and features."""
        return self._passes.prepare(image)

    def match(self, first: list[Tensor], second: list[Tensor], size: tuple[int, int]) -> Tensor:
        """Two prepared images of (height, width) `size` -> the packed estimate (B, 3, H, W)."""
        return self._finish(self._passes.match(first, second, size))

    def _finish(self, found: Found) -> Tensor:
        """The packed estimate of the last pass, at the size of the frames."""
        feeding, size = self.feedings[-1], size_of(found.flow)
        confidence = feeding.unfit(self._confidence(*found.view), size)
        _, *images = found.view
        seen = (feeding.without_padding(image, size) for image in images)  # it is no texture
        return gate(pack([Estimate(found.flow, confidence)]), *seen)


def load(
    weights: str | Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    backend: str = "auto",
    memory_limit: int | None = None,
    quality: str | Quality = NORMAL,
    *,
    full_size: bool = False,
) -> FlowEstimator:
    """Return an estimator for a weights file or a packaged name; without either, the default.

    `device` is "auto" (CUDA, else MPS, else CPU), "cpu", "cuda", "cuda:1", "mps";
    `precision` is "auto" (bf16 on CPUs with AMX, fp16 on CUDA with the fast backend, else
    fp32), "fp32", "bf16" or "fp16"; `backend` is "auto" (fast on CPUs and CUDA), "fast" or "plain";
    `memory_limit`, in bytes, is what an estimate may use; without it, most of what is free;
    `quality` is "fast", "normal" or "best", which takes several times as long;
    `full_size` computes every frame at its own size, even where the weights ask for smaller ones.
    """
    quality = find_quality(quality)
    path = resolve(weights)
    try:
        found = read_weights(path)
        model = load_model(found)
    except InputError as error:
        message = str(error)
        raise InputError(message if str(path) in message else f"{path}: {message}") from None
    calibration = found.calibration_for(quality)
    how = (device, precision, backend, memory_limit, calibration, quality)
    return FlowEstimator(model, *how, full_size=full_size)
