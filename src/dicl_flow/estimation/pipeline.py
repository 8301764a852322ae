"""From two batches of frames to their packed estimate, stage by stage.

- `Passes`: in each pass the frames are resized and matched, and the flow is resized back
- `Plan`: which passes frames of a size get
- `Finish`: flow, confidence and sharpness of the last pass, packed at the size of the frames
- `clear_uninformative`: pairs in which nothing can be matched, or nothing moves
- `Tiles`: frames that are too large for the memory are cut, and their estimates are blended
- `Pipeline`: all of this, recorded where that is faster
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isqrt, prod
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..accelerated.recording import Graphs, SideStream
from ..accelerated.settings import check_limit, fixed_bytes
from ..config import BEST, Calibration, Quality
from ..models import InitialFlow, LevelFlow
from ..ops import INSIDE, Size, resize, size_in_multiples, size_of
from .compute import CudaEngine, Engine
from .confidence import NOISE, find_confidence, find_cues, finest_stride
from .inputs import Feeding

BLANK = 3 / 255  # one grey level, and half of one for rounding; black to white is 2
_MOST_SIZES = 1024  # of frames, whose tiles are remembered
OVERLAP = 128  # px over which neighbouring tiles are blended, a multiple of what networks take
Progress: TypeAlias = Callable[[int, int], None]
"""Called after each pass: the pixels that the network has seen, and those it will see in all."""
Count: TypeAlias = Callable[[int], None]
"""Called with the pixels that the network has seen in a pass."""


class View(NamedTuple):
    """What a pass computed in one direction, and the frames that it saw."""

    levels: list[LevelFlow]
    image1: Tensor
    """(B, 3, H, W) in [-1, 1]: the frame to which the flow belongs."""
    image2: Tensor


@dataclass(frozen=True)
class PassResult:
    """The result of a pass in one direction."""

    view: View
    feeding: Feeding
    size: Size
    """(height, width) of the frames, before they were fed."""
    upsample: Callable[[Tensor, Size], Tensor]

    @property
    def flow(self) -> Tensor:
        """(B, 2, H, W) at the size of the frames, in their pixels."""
        seen = self.upsample(self.view.levels[-1].refined, size_of(self.view.image1))
        return self.feeding.unfit_flow(seen, self.size)

    def images(self) -> list[Tensor]:
        """Both frames as the network saw them, without their padding: it is no texture."""
        _, *images = self.view
        return [self.feeding.without_padding(image, self.size) for image in images]


class Passes:
    """One pass for each of the `feedings`, each starting from the flow of the previous one.

    From an initial flow, levels run from the stride `start` on. Frames are (B, 3, H, W) in [0, 1].
    """

    def __init__(self, engine: Engine, feedings: Sequence[Feeding], start: int) -> None:
        self.engine, self.network = engine, engine.network
        self.feedings, self.start = feedings, start

    def one_way(
        self, image1: Tensor, image2: Tensor, *initial: Tensor, count: Count | None = None
    ) -> PassResult:
        """From frame 1 to frame 2; `initial` is a flow (B, 2, H, W) to start from."""

        def run_pass(number: int, begin: Sequence[InitialFlow]) -> list[View]:
            fitted = self.engine.fit(self.feedings[number], image1, image2)
            return [View(self.engine.run(self.network, *fitted, *begin), *fitted)]

        return self._run(run_pass, size_of(image1), initial, count)[0]

    def both_ways(
        self, image1: Tensor, image2: Tensor, count: Count | None = None
    ) -> list[PassResult]:
        """From frame 1 to frame 2, and from frame 2 to frame 1."""

        def run_pass(number: int, begin: Sequence[InitialFlow]) -> list[View]:
            fitted = self.engine.fit(self.feedings[number], image1, image2)
            forward, backward = self.engine.run(self.network.both_ways, *fitted, *begin)
            return [View(forward, *fitted), View(backward, *fitted[::-1])]

        return self._run(run_pass, size_of(image1), count=count)

    def prepare(self, image: Tensor) -> list[Tensor]:
        """For each pass: the frame as the network sees it, and its features, all computed here."""
        parts: list[Tensor] = []
        for feeding in self.feedings:
            fitted = self.engine.fit(feeding, image)[0].contiguous()
            features = self.engine.run(lambda seen: list(self.network.features(seen)), fitted)
            parts += [fitted, *features]
        return parts

    def match(self, first: list[Tensor], second: list[Tensor], size: Size) -> PassResult:
        """From one prepared frame of `size` to another."""
        count = len(first) // len(self.feedings)  # parts of a pass

        def run_pass(number: int, begin: Sequence[InitialFlow]) -> list[View]:
            mine = slice(number * count, (number + 1) * count)
            (fitted1, *pyramid1), (fitted2, *pyramid2) = first[mine], second[mine]
            match = self.network.flow_from_features
            levels = self.engine.run(match, pyramid1, pyramid2, fitted1, *begin)
            return [View(levels, fitted1, fitted2)]

        return self._run(run_pass, size)[0]

    def _run(
        self,
        run_pass: Callable[[int, Sequence[InitialFlow]], list[View]],
        size: Size,
        initial: Sequence[Tensor] = (),
        count: Count | None = None,
    ) -> list[PassResult]:
        """Call `run_pass` with the number of each pass; with an initial flow, of the last one."""
        results, upsample = list[PassResult](), self.network.upsample
        for number in range(len(self.feedings) - 1 if initial else 0, len(self.feedings)):
            feeding = self.feedings[number]
            fitted = (feeding.fit_flow(flow) for flow in initial)
            views = run_pass(number, [InitialFlow(flow, self.start) for flow in fitted])
            results = [PassResult(view, feeding, size, upsample) for view in views]
            if count is not None:
                count(len(views) * prod(feeding.seen(size)))
            if number + 1 < len(self.feedings):
                initial = [result.flow for result in results]
        return results


class Plan:
    """The passes over frames of any size.

    At full size, a frame that the weights would scale down gets two passes: one that is scaled
    down, to find large motion, and one at full size that starts from its flow.
    """

    def __init__(self, engine: Engine, quality: Quality, *, full_size: bool) -> None:
        config, self.full_size = engine.network.config, full_size
        scaled_down = Feeding.of(config)
        fed = config.at_full_size() if full_size else config
        feedings = [Feeding.of(fed, scale) for scale in quality.scales]
        self.last = feedings[-1]
        self.largest = max(feedings, key=lambda feeding: feeding.scale)  # needs the most memory
        self.first = Passes(engine, [scaled_down], BEST.start)  # over large frames
        self.large = Passes(engine, [scaled_down, self.last], BEST.start)
        self._others = Passes(engine, feedings, quality.start)
        possible = config.host_record.begins_from_flow and config.strides[-1] <= BEST.start
        self._limit = config.max_pixels if full_size and possible else 0

    def is_large(self, size: Size) -> bool:
        """Whether frames of `size` get a first pass that is scaled down."""
        return bool(self._limit) and prod(size) > self._limit

    def passes(self, size: Size) -> Passes:
        """All passes over frames of `size`."""
        return self.large if self.is_large(size) else self._others


class Finish:
    """Called with the result of the last pass, it gives the packed estimate."""

    def __init__(self, calibration: Calibration | None, *, sharpness: bool) -> None:
        self.calibration, self.sharpness = calibration, sharpness

    def __call__(self, result: PassResult) -> Tensor:
        """(B, 3, H, W); with `sharpness`, that of the match is the fourth channel."""
        feeding = result.feeding
        scores = [find_confidence(*result.view, self.calibration, feeding.scale)]
        if self.sharpness:
            scores.append(find_confidence(*result.view, calibration=None))
        fitted = (feeding.unfit(score, result.size) for score in scores)
        return clear_uninformative(torch.cat([result.flow, *fitted], 1), *result.images())


def clear_uninformative(packed: Tensor, image1: Tensor, image2: Tensor) -> Tensor:
    """Clear pairs without information on motion in a packed estimate (B, 3 or 4, H, W).

    A pair with a frame of a single colour gets 0 in all channels: nothing can be matched.
    A pair of equal frames gets flow 0. All others stay as they are, bit for bit.
    """
    blank = torch.minimum(_contrast(image1), _contrast(image2)) < BLANK
    still = blank | ((image1 - image2).abs().amax((1, 2, 3), keepdim=True) == 0)
    others = [blank] * (packed.shape[1] - 2)
    return packed.masked_fill(torch.cat([still, still, *others], 1), 0)


def _contrast(image: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, 1, 1, 1): brightest minus darkest, of the channel that varies most."""
    extent = image.amax((2, 3), keepdim=True) - image.amin((2, 3), keepdim=True)
    return extent.amax(1, keepdim=True)


class KernelFinish(Finish):
    """The accelerated version, on CUDA: `clear_uninformative` is part of its kernels."""

    def __init__(
        self, calibration: Calibration | None, device: torch.device, *, sharpness: bool
    ) -> None:
        super().__init__(calibration, sharpness=sharpness)
        weights = None if calibration is None else [calibration.bias, *calibration.weights]
        self._weights = None if weights is None else torch.tensor(weights, device=device)
        self._side = SideStream()

    def __call__(self, result: PassResult) -> Tensor:
        """See `Finish`."""
        from ..accelerated.estimate import image_ranges, pack_estimate, weigh_cues

        levels, *images = result.view
        finest, feeding, seen = levels[-1], result.feeding, size_of(images[0])
        size = size_of(result.images()[0])
        with self._side.fork(images[0].device):
            extent = image_ranges(images[0], images[1], size)
        logit = None
        if self._weights is not None:
            coarser = levels[-2] if len(levels) > 1 else finest
            flows = (finest.refined, finest.matched, coarser.refined)
            stride = finest_stride(levels, images[0], feeding.scale)
            logit = weigh_cues(finest.entropy, flows, images, self._weights, stride, NOISE, INSIDE)
        self._side.join(images[0].device)
        parts = (finest.refined, finest.entropy, logit, extent)
        packed = pack_estimate(*parts, BLANK, seen, size, sharpness=self.sharpness)
        if feeding.keeps_pixels:
            return packed
        flow, *scores = packed.split([2] + [1] * (packed.shape[1] - 2), 1)
        fitted = (feeding.unfit(score, result.size) for score in scores)
        return torch.cat([feeding.unfit_flow(flow, result.size), *fitted], 1)


class Tiles:
    """The tiles in which an engine computes frames, for the memory that it may use."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self._engine, self._plan = engine, plan
        self._sizes: dict[torch.Size, Size] = {}

    def size(self, image: Tensor) -> Size:
        """Tiles (height, width) of a pair like (B, 3, H, W) `image`: all of it, if it fits."""
        found = self._sizes.get(image.shape)  # asking for free memory takes time
        if found is None:
            found = self._find(image)
            if len(self._sizes) >= _MOST_SIZES:  # a server meets any number of them
                self._sizes = {}
            self._sizes[image.shape] = found
        return found

    def at_once(self, size: Size) -> int:
        """How many pairs of frames of `size` to compute at a time: what is faster, and fits."""
        return max(1, self._engine.pairs_at_once(self._fitting(size)))

    def together(self, size: Size) -> int:
        """The same for pairs that are computed as a batch."""
        return max(1, min(self._engine.pairs_together(), self._fitting(size)))

    def _fitting(self, size: Size) -> int:
        """For how many pairs of frames of `size` the memory suffices."""
        needed = self._engine.bytes_per_pixel() * prod(self._plan.largest.seen(size))
        return self._engine.compute.memory // needed

    def _find(self, image: Tensor) -> Size:
        compute, feeding, size = self._engine.compute, self._plan.largest, size_of(image)
        fixed = fixed_bytes(image, compute.device)
        per_pixel = len(image) * self._engine.bytes_per_pixel()
        free = compute.memory
        if feeding.max_pixels:  # such frames are scaled, not cut
            needed = fixed + per_pixel * prod(feeding.seen(size))
            hint = "; `full_size=True` computes tiles, which need less"
            limit = free if feeding.scale > 1 else compute.memory_limit or needed
            check_limit(limit, needed, describe(image), hint)
            return size
        if self._plan.is_large(size):  # the first pass sees the whole frame
            seen = self._plan.first.feedings[0].seen(size)
            check_limit(free, fixed + per_pixel * prod(seen), describe(image))
        per_pixel = int(per_pixel * feeding.scale**2)
        needed = fixed + per_pixel * prod(smallest_tile(size, feeding.multiple))
        check_limit(free, needed, describe(image))
        return tile_size(size, (free - fixed) // per_pixel, feeding.multiple)


def describe(batch: Tensor) -> str:
    """Number and size of (B, C, H, W) frames, for messages."""
    count = f"{len(batch)} x " if len(batch) > 1 else ""
    return f"{count}{batch.shape[-1]}x{batch.shape[-2]}"


def smallest_tile(size: Size, multiple: int) -> Size:
    """Return the (height, width) of the smallest tile of frames of `size`."""
    return size_in_multiples((min(2 * OVERLAP, size[0]), min(2 * OVERLAP, size[1])), multiple)


def tile_size(size: Size, capacity: int, multiple: int) -> Size:
    """Return the tile (height, width) for frames of `size`: all of it where `capacity` px suffice.

    Otherwise nearly square, in multiples of `multiple`; the smallest tile must fit.
    """
    height, width = size_in_multiples(size, multiple)
    if height * width <= capacity:
        return size
    least_height, least_width = smallest_tile(size, multiple)
    tile_height = min(height, max(isqrt(capacity) // multiple * multiple, least_height))
    tile_width = min(width, max(capacity // tile_height // multiple * multiple, least_width))
    return min(height, capacity // tile_width // multiple * multiple), tile_width


def in_tiles(compute: Callable[..., Tensor], tile: Size, *inputs: Tensor) -> Tensor:
    """Run `compute` on tiles of (B, C, H, W) inputs and blend what it gives: (B, K, H, W)."""
    size = size_of(inputs[0])
    if tile[0] >= size[0] and tile[1] >= size[1]:
        return compute(*inputs)
    total, weights = inputs[0].new_zeros(()), inputs[0].new_zeros(size)
    for rows, columns in _places(size, tile):
        part = (..., rows, columns)
        result = compute(*(tensor[part] for tensor in inputs))
        if not total.ndim:
            total = result.new_zeros(*result.shape[:2], *size)
        weight = _fade(result)
        total[part] += result * weight
        weights[part] += weight
    return total / weights


def _places(size: Size, tile: Size) -> Iterator[tuple[slice, slice]]:
    """The rows and columns of each tile of frames of `size`."""
    for top in _starts(size[0], tile[0]):
        for left in _starts(size[1], tile[1]):
            bottom, right = min(top + tile[0], size[0]), min(left + tile[1], size[1])
            yield slice(top, bottom), slice(left, right)


def _starts(length: int, tile: int) -> list[int]:
    """Where tiles start, on the grid of the feature net; the last one overlaps more."""
    last = max(0, -(-(length - tile) // OVERLAP) * OVERLAP)
    return [*range(0, last, max(tile - OVERLAP, 1)), last]


def _fade(tile: Tensor) -> Tensor:
    """(H, W) weights that rise from each border to one at `OVERLAP`."""
    ramps = []
    for side in tile.shape[-2:]:
        position = torch.arange(side, device=tile.device) + 0.5
        ramps.append(torch.minimum(position, side - position).clamp(max=OVERLAP) / OVERLAP)
    return ramps[0][:, None] * ramps[1]


class Pipeline:
    """Called with two (B, 3, H, W) images in [0, 1], it gives their packed estimate."""

    def __init__(
        self, engine: Engine, plan: Plan, calibration: Calibration | None, sharpness: bool = False
    ) -> None:
        self._settings = (engine, plan, calibration, sharpness)
        self._plan, self._device = plan, engine.compute.device
        self.finish = Finish(calibration, sharpness=sharpness)
        if isinstance(engine, CudaEngine):
            self.finish = KernelFinish(calibration, self._device, sharpness=sharpness)
        self._one_way = engine.record(self.estimate_whole)
        self._both_ways = engine.record(self._estimate_both)
        # large frames: the flow of the first pass, then tiles that start from it
        self._first_of_large = engine.record(self._estimate_first)
        self._last_of_large = engine.record(self._estimate_last)
        self.tiles = Tiles(engine, plan)

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickles: recordings and what is known of the memory serve this process alone."""
        return Pipeline, self._settings

    @torch.inference_mode()
    def __call__(
        self,
        image1: Tensor,
        image2: Tensor,
        *initial: Tensor,
        backward: bool = False,
        progress: Progress | None = None,
    ) -> Tensor:
        """The packed estimate (B, 3, H, W); 4 channels with sharpness, twice as many both ways."""
        image1, image2 = image1.to(self._device), image2.to(self._device)
        begin = [flow.to(self._device) for flow in initial]
        size, tile = size_of(image1), self.tiles.size(image1)
        ways = 2 if backward else 1
        count = progress and _counting(progress, ways * self._pixels(size, tile, begun=bool(begin)))
        if tile == size or not self._plan.is_large(size):
            compute = _counted(self._both_ways if backward else self._one_way, count)
            return in_tiles(compute, tile, image1, image2, *begin)
        pairs = [(image1, image2), (image2, image1)][:ways]
        first, last = (_counted(c, count) for c in (self._first_of_large, self._last_of_large))
        flows = begin or [first(*pair) for pair in pairs]  # of the whole frame
        both = zip(pairs, flows, strict=True)
        return torch.cat([in_tiles(last, tile, *pair, flow) for pair, flow in both], 1)

    @torch.inference_mode()
    def measure(self, image1: Tensor, image2: Tensor) -> tuple[Tensor, Tensor]:
        """Flow (B, 2, H, W) and cues (B, 7, H, W), at the size of the frames: to calibrate."""
        passes = self._plan.passes(size_of(image1))
        result = passes.one_way(image1.to(self._device), image2.to(self._device))
        cues = find_cues(*result.view, result.feeding.scale)
        seen = resize(cues, size_of(result.view.image1))
        return result.flow, result.feeding.unfit(seen, result.size)

    def estimate_whole(
        self, image1: Tensor, image2: Tensor, *initial: Tensor, count: Count | None = None
    ) -> Tensor:
        """(B, 3, H, W) images in [0, 1] -> the packed estimate (B, 3, H, W)."""
        passes = self._plan.passes(size_of(image1))
        return self.finish(passes.one_way(image1, image2, *initial, count=count))

    def _estimate_both(self, image1: Tensor, image2: Tensor, count: Count | None = None) -> Tensor:
        """The same for both directions, one after the other."""
        passes = self._plan.passes(size_of(image1))
        return torch.cat([*map(self.finish, passes.both_ways(image1, image2, count))], 1)

    def _estimate_first(self, image1: Tensor, image2: Tensor, count: Count | None = None) -> Tensor:
        """The flow (B, 2, H, W) of the first pass over large frames."""
        return self._plan.first.one_way(image1, image2, count=count).flow

    def _estimate_last(
        self, image1: Tensor, image2: Tensor, flow: Tensor, count: Count | None = None
    ) -> Tensor:
        """The packed estimate of the last pass over a tile of them, from that flow."""
        return self.finish(self._plan.large.one_way(image1, image2, flow, count=count))

    def _pixels(self, size: Size, tile: Size, *, begun: bool) -> int:
        """How many pixels the network will see in one direction; with `begun`, from a flow."""
        pixels, feedings = 0, self._plan.passes(size).feedings
        if tile != size and self._plan.is_large(size):  # only the last pass is cut
            pixels = 0 if begun else prod(feedings[0].seen(size))
            feedings = feedings[-1:]
        for rows, columns in _places(size, tile):
            part = (rows.stop - rows.start, columns.stop - columns.start)
            pixels += sum(prod(f.seen(part)) for f in feedings[-1 if begun else 0 :])
        return pixels


def _counting(progress: Progress, total: int) -> Count:
    """Return what adds up the pixels of the passes for `progress`."""
    done = 0

    def count(pixels: int) -> None:
        nonlocal done
        done += pixels
        progress(done, total)

    return count


def _counted(compute: Callable[..., Tensor], count: Count | None) -> Callable[..., Tensor]:
    """Let `compute` count its passes; a recording has none."""
    return (
        compute if count is None or isinstance(compute, Graphs) else partial(compute, count=count)
    )
