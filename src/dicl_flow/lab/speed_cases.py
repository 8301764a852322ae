"""What `dicl-flow bench` measures: every path on every case, compared with the plain path."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter

import torch
from torch import Tensor

from ..config import NORMAL, QUALITIES, Calibration, Quality
from ..estimation.compute import PRECISIONS
from ..estimation.estimator import FlowEstimator
from ..models import FlowNetwork
from .clock import PeakMemory, median_seconds
from .speed_compiled import COMPILED, compile_network, explained
from .speed_floor import count_work, floor_seconds, machine_rates
from .speed_peers import Peer


@dataclass(frozen=True)
class Case:
    """Pairs of one size, `batch` of them at a time."""

    width: int
    height: int
    batch: int = 1


@dataclass(frozen=True)
class Result:
    """One way to compute a case, compared with the plain path in float32."""

    case: Case
    backend: str
    """Or the name of another method."""
    precision: str
    seconds: float
    """For the whole batch."""
    startup_seconds: float
    """From a loaded network to the first result: folding, compiling, recording, first call."""
    peak_bytes: int | None
    ratio: float | None
    """How many times faster than the plain path; None where that was not measured."""
    mean_difference: float | None
    """Mean distance from the flow of the plain path, in pixels."""
    max_difference: float | None
    floor_share: float | None
    """The least possible time divided by the time: 1 is as fast as the machine could be."""


def measure(
    model: FlowNetwork,
    device: torch.device,
    cases: Sequence[Case],
    ways: Sequence[tuple[str, str]],
    repeats: int,
    calibration: Calibration | None = None,
    quality: Quality = QUALITIES[NORMAL],
    peers: Sequence[Peer] = (),
    left_out: Callable[[str], object] = lambda reason: None,
) -> Iterator[Result]:
    """Measure every way (backend, precision) to compute every case, one after the other.

    A backend is one of an estimator, or "compiled". The way ("plain", "fp32") should come first:
    the others are compared with it. A way that lacks the memory to compute a case in one piece is
    left out. Of the `peers`, the time alone is compared; one that fails is reported to `left_out`.
    """
    rates = cache(lambda precision: machine_rates(device, PRECISIONS[precision]))
    for case in cases:
        images = [image.to(device) for image in moving_pattern(case)]
        work = count_work(model.config, case.batch, (case.height, case.width), quality)
        plain = None
        for backend, precision in ways:
            make = partial(_estimator, model, device, backend, precision, calibration, quality)
            with explained() if backend == COMPILED else nullcontext():
                run = _run(make, device, images, repeats)
            if run is None:
                continue
            if (backend, precision) == ("plain", "fp32"):
                plain = run
            least = floor_seconds(work, rates(precision), PRECISIONS[precision])
            share = least / run.seconds
            measured = (run.seconds, run.startup_seconds, run.peak_bytes)
            yield Result(case, backend, precision, *measured, *run.compared_to(plain), share)
        for peer in peers:
            try:
                measured = _time_peer(peer, images, repeats)
            except RuntimeError as error:  # RAFT in 3840x2160: too many numbers for its pooling
                size = f"{case.width}x{case.height}"
                reason = str(error).partition("\n")[0]
                left_out(f"{peer.name} {peer.precision} at {size}: {reason}")
                continue
            ratio = None if plain is None else plain.seconds / measured[0]
            yield Result(case, peer.name, peer.precision, *measured, ratio, None, None, None)


@dataclass
class _Run:
    seconds: float
    startup_seconds: float
    peak_bytes: int | None
    flow: Tensor

    def compared_to(self, plain: "_Run | None") -> tuple[float | None, float | None, float | None]:
        """How many times faster, mean and maximum distance."""
        if plain is None:
            return None, None, None
        distance = (self.flow - plain.flow).norm(dim=1)
        return plain.seconds / self.seconds, distance.mean().item(), distance.max().item()


def _estimator(
    model: FlowNetwork,
    device: torch.device,
    backend: str,
    precision: str,
    calibration: Calibration | None,
    quality: Quality,
) -> FlowEstimator:
    if backend == COMPILED:
        model, backend = compile_network(model, device), "plain"
    how = (str(device), precision, backend)
    return FlowEstimator(model, *how, calibration=calibration, quality=quality)


def _run(
    make: Callable[[], FlowEstimator],
    device: torch.device,
    images: list[Tensor],
    repeats: int,
) -> _Run | None:
    with PeakMemory(device) as memory:
        start = perf_counter()
        estimator = make()
        if not estimator.fits(images[0]):
            return None
        flow = estimator.estimate(*images)[0].cpu()
        startup = perf_counter() - start
        seconds = median_seconds(lambda: estimator.estimate(*images), device, repeats)
    return _Run(seconds, startup, memory.bytes, flow)


def _time_peer(peer: Peer, images: list[Tensor], repeats: int) -> tuple[float, float, int | None]:
    """Seconds of a call, seconds to the first result, bytes at the peak."""
    with PeakMemory(peer.device) as memory:
        start = perf_counter()
        call = peer.prepare(*(image.to(peer.device) for image in images))
        call()
        startup = perf_counter() - start
        seconds = median_seconds(call, peer.device, repeats)
    return seconds, startup, memory.bytes


def moving_pattern(case: Case) -> tuple[Tensor, Tensor]:
    """Two (B, 3, H, W) images in [0, 1]: smooth random patterns, and the same moved by 6 px.

    Fine and coarse ones, as in photographs: to a coarse level, fine ones look alike everywhere.
    """
    generator = torch.Generator().manual_seed(0)
    shift = 6
    size = (case.height + shift, case.width + shift)
    patterns = [
        torch.nn.functional.interpolate(
            torch.rand(case.batch, 3, *(side // detail + 4 for side in size), generator=generator),
            size,
            mode="bicubic",
        )
        for detail in (8, 32, 128)  # px
    ]
    fine = torch.stack(patterns).mean(0).clamp(0, 1)
    return fine[..., :-shift, :-shift], fine[..., shift:, shift:]
