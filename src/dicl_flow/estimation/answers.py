"""From two batches of tensors to their packed estimates: whole or in tiles, recorded or not."""

from typing import Any

import torch
from torch import Tensor

from ..config import Calibration
from ..ops import resize
from .confidence import find_cues
from .engines import Engine
from .feeding import Size, size_of
from .plan import Plan
from .tiling import Tiles, in_tiles


class Answers:
    """Called with two (B, 3, H, W) images in [0, 1], it gives their packed estimate.

    With `sharpness`, that of the match is in it too: 4 channels in each direction, not 3.
    """

    def __init__(
        self,
        engine: Engine,
        plan: Plan,
        calibration: Calibration | None,
        *,
        sharpness: bool = False,
    ) -> None:
        self._engine, self._plan, self._calibration = engine, plan, calibration
        self._sharpness = sharpness
        self._device = engine.compute.device
        self._connect()

    def _connect(self) -> None:
        """Make what serves this process alone: recordings, and what is known of its memory."""
        engine = self._engine
        self._finish = engine.finish(self._calibration, sharpness=self._sharpness)
        self._one_way = engine.record(self.estimate_whole)
        self._both_ways = engine.record(self._estimate_both)
        self._first_of_large = engine.record(self._estimate_first_of_large)
        self._last_of_large = engine.record(self._estimate_last_of_large)
        self.tiles = Tiles(engine, self._plan)

    def __getstate__(self) -> dict[str, Any]:
        """For pickles, which another process may open: all but what `_connect` makes."""
        kept = ("_engine", "_plan", "_calibration", "_sharpness", "_device")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._connect()

    @torch.inference_mode()
    def __call__(
        self, image1: Tensor, image2: Tensor, *initial: Tensor, backward: bool = False
    ) -> Tensor:
        """The packed estimate of one direction or both: (B, 3 or 6, H, W)."""
        image1, image2 = image1.to(self._device), image2.to(self._device)
        begin = [flow.to(self._device) for flow in initial]
        tile = self.tiles.size(image1)
        if tile == size_of(image1) or not self._plan.is_large(size_of(image1)):
            compute = self._both_ways if backward else self._one_way
            return in_tiles(compute, tile, image1, image2, *begin)
        pairs = [(image1, image2), (image2, image1)][: 2 if backward else 1]
        flows = begin or [self._first_of_large(*pair) for pair in pairs]  # of the whole frame
        answers = (
            in_tiles(self._last_of_large, tile, *pair, flow)
            for pair, flow in zip(pairs, flows, strict=True)
        )
        return torch.cat([*answers], 1)

    @torch.inference_mode()
    def measure(self, image1: Tensor, image2: Tensor) -> tuple[Tensor, Tensor]:
        """Flow (B, 2, H, W) and cues (B, 7, H, W), at the size of the frames: to calibrate."""
        passes, feeding = self._plan.passes(size_of(image1)), self._plan.last
        found = passes.one_way(image1.to(self._device), image2.to(self._device))
        levels, fitted1, fitted2 = found.view
        cues = resize(find_cues(levels, fitted1, fitted2, feeding.scale), size_of(fitted1))
        return found.flow, feeding.unfit(cues, size_of(image1))

    def estimate_whole(self, image1: Tensor, image2: Tensor, *initial: Tensor) -> Tensor:
        """(B, 3, H, W) images in [0, 1] -> the packed estimate (B, 3, H, W)."""
        passes = self._plan.passes(size_of(image1))
        return self._finish(passes.one_way(image1, image2, *initial))

    def _estimate_both(self, image1: Tensor, image2: Tensor) -> Tensor:
        """The same for both directions, one after the other: (B, 6, H, W)."""
        passes = self._plan.passes(size_of(image1))
        return torch.cat([*map(self._finish, passes.both_ways(image1, image2))], 1)

    def _estimate_first_of_large(self, image1: Tensor, image2: Tensor) -> Tensor:
        """The flow (B, 2, H, W) of the first pass over large frames."""
        return self._plan.first.one_way(image1, image2).flow

    def _estimate_last_of_large(self, image1: Tensor, image2: Tensor, initial: Tensor) -> Tensor:
        """The packed estimate of a tile of large frames, which starts from the first pass."""
        return self._finish(self._plan.large.one_way(image1, image2, initial))

    def prepare(self, image: Tensor) -> list[Tensor]:
        """(B, 3, H, W) in [0, 1] -> what `match` needs: as the network sees it, and features."""
        return self._plan.passes(size_of(image)).prepare(image)

    def match(self, first: list[Tensor], second: list[Tensor], size: Size) -> Tensor:
        """Two prepared images of (height, width) `size` -> the packed estimate (B, 3, H, W)."""
        return self._finish(self._plan.passes(size).match(first, second, size))
