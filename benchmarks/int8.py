"""The matching nets' convolutions in int8 on a CPU: their time, that of an estimate, and the error.

    python -m benchmarks.int8 FOLDER -o benchmarks/results/int8.json

On a pair of `--size`, on one thread, processor time (other programs disturb the time that passes):
which share of the accelerated estimate in bfloat16 is convolutions and first layers of the
matching nets, and how long both take with int8 at some levels, in runs that alternate. On the real
pairs of FOLDER, as in `yardstick.py`: how far the flow is from the accelerated one in float32, and
the EPE.

Weights have one scale for each output channel, activations one for each channel: the extremes on
the two demo pairs. First layers stay in bfloat16.
"""

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date
from functools import partial
from itertools import product
from operator import truediv
from pathlib import Path
from statistics import fmean, median
from time import process_time
from typing import Any, cast

import cv2
import numpy as np
import torch
from torch import Tensor, nn

import dicl_flow
from benchmarks.yardstick import SETS, find_pairs
from dicl_flow.accelerated.cpu import DirectMatcher, FactoredMatcher
from dicl_flow.accelerated.first_layer import FactoredLayer
from dicl_flow.accelerated.first_layer.cpu import PartialWindows
from dicl_flow.accelerated.folded import cells_to_pixels, fold, up_to_corners
from dicl_flow.accelerated.settings import displacements_at_once, processor
from dicl_flow.data import read_frames, read_sample
from dicl_flow.errors import InputError
from dicl_flow.estimation.estimator import FlowEstimator, load
from dicl_flow.evaluation import endpoint_error
from dicl_flow.files import Array, read_image, write_files
from dicl_flow.lab.speed import describe_machine
from dicl_flow.models.dicl import DiclLevel
from dicl_flow.models.matching import MatchingNet, PairwiseMatcher

DEMO = Path(dicl_flow.__file__).parent / "demo"
PAIRS_OF_DEMO = [("bunny_img1.jpg", "bunny_img2.jpg"), ("rendered_img1.png", "rendered_img2.png")]
VARIANTS = {"int8 at 4": (4,), "int8 at 16, 8, 4": (16, 8, 4), "int8 at all": (64, 32, 16, 8, 4)}
COMPARED = ("bf16", "int8 at 16, 8, 4", "int8 at all")  # on real pairs
Extremes = dict[tuple[int, str], tuple[Tensor, Tensor]]
"""By level and layer: the least and the largest value of each channel."""


class Int8Conv(nn.Module):
    """A convolution of uint8 by int8: with ReLU to uint8, without to float32 (no scale follows)."""

    def __init__(
        self,
        stride: int,
        padding: int,
        weight: Tensor,
        bias: Tensor,
        scale: Tensor,
        next_scale: Tensor | None,
    ) -> None:
        """Scales are those of the channels of the input and of the output."""
        super().__init__()
        self.where = ([stride] * 2, [padding] * 2, [1, 1])
        self.after = (torch.float32, "none") if next_scale is None else (torch.uint8, "relu")
        divisor = torch.ones(len(weight)) if next_scale is None else next_scale
        weight = weight.float() * scale[:, None, None] / divisor[:, None, None, None]
        self.weight_scale = weight.abs().amax((1, 2, 3)) / 127
        self.weight = (weight / self.weight_scale[:, None, None, None]).round().to(torch.int8)
        self.bias = bias.float() / divisor
        self.zero = torch.zeros(len(weight), dtype=torch.int32)
        self.packed: dict[torch.Size, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, out, H', W'), channels last."""
        if x.shape not in self.packed:
            self.packed[x.shape] = torch.ops.onednn.qconv_prepack(
                self.weight, self.weight_scale, 1.0, 0, *self.where, 1, list(x.shape)
            )
        known = (self.packed[x.shape], self.weight_scale, self.zero, self.bias, *self.where, 1)
        return torch.ops.onednn.qconv2d_pointwise(x, 1.0, 0, *known, 1.0, 0, *self.after, [], "")


class Int8Windows(PartialWindows):
    """Partial windows of the whole first layer, in uint8."""

    def __init__(
        self, layer: FactoredLayer, *features: Tensor, quantised: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__(layer, *features)
        self._kinds = [
            (terms, quantised(first.chunk(2, 1)[0]), quantised(second))
            for terms, first, second in self._kinds
        ]

    def correct(self, result: Tensor, chunk: range) -> None:
        """Overwrite the first layer, (U·V·B, channels, H, W), of some displacements."""
        rows, start = result.permute(0, 2, 3, 1).flatten(0, 2), chunk.start * len(self._minus_first)
        for terms, first, second in self._kinds:
            part = slice(terms.bounds[chunk.start], terms.bounds[chunk.stop])
            minus_first = first.index_select(0, terms.first[part])
            values = torch.maximum(second.index_select(0, terms.second[part]), minus_first)
            rows[terms.positions[part] - start] = values.sub_(minus_first)


class Int8Matcher(FactoredMatcher):
    """A `FactoredMatcher` whose other layers are int8: both terms share scale and zero.

    So max(B, -A) + A is exact on their uint8 values, never negative, and 0 stays 0.
    """

    def __init__(self, matcher: PairwiseMatcher, extremes: Extremes, level: int) -> None:
        super().__init__(matcher, torch.bfloat16)
        net = cast(MatchingNet, matcher.net)
        terms = [extremes[level, name] for name in ("first", "second")]
        self.low = torch.minimum(terms[0][0], terms[1][0])
        self.scale = scale_of(torch.maximum(terms[0][1], terms[1][1]) - self.low)
        folded = [fold(net.down), *map(fold, net.inner), up_to_corners(*fold(net.up))]
        folded.append(score_of_corners(net.score))
        places = [(2, 1), *((1, 1) for _ in folded[1:-1]), (1, 0)]  # stride and padding
        steps = [scale_of(extremes[level, f"{n}"][1]) for n in range(len(folded) - 1)]
        scales = zip([self.scale, *steps], [*steps, None], strict=True)
        self.layers = nn.Sequential(
            *(
                Int8Conv(*place, *values, *pair)
                for place, values, pair in zip(places, folded, scales, strict=True)
            )
        )

    def forward(self, features1: Tensor, features2: Tensor) -> Tensor:
        """Two (B, C, H, W) maps of even sides -> (B, 1, U, V, H, W)."""
        side = 2 * self.radius + 1
        features1, features2 = map(self.first.prepare, (features1, features2))
        terms = self.first.first_term(features1), self.first.second_term(features2)
        windows = Int8Windows(self.first, features1, features2, terms[0], quantised=self.quantised)
        minus_first, second = (
            self.quantised(term.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) for term in terms
        )
        batch, _, height, width = features1.shape
        step = min(displacements_at_once(minus_first, None), side * side)
        scores = self.score.bias.new_empty(side * side, batch, height, width)
        for start in range(0, side * side, step):
            chunk = range(start, min(start + step, side * side))
            hidden = self._differences(minus_first, second, chunk)
            windows.correct(hidden, chunk)
            cells = self.layers[-1](inside_image(self.layers[:-1](hidden)))
            scores[chunk.start : chunk.stop] = (
                cells_to_pixels(cells).unflatten(0, (len(chunk), batch)).squeeze(2)
            )
        return scores.unflatten(0, (side, side)).permute(2, 0, 1, 3, 4).unsqueeze(1)

    def quantised(self, terms: Tensor) -> Tensor:
        """(…, channels) -> the same in uint8."""
        steps = (terms.float() - self.low).div_(self.scale).add_(0.5).clamp_(0, 255)
        return steps.to(torch.uint8)

    def _differences(self, minus_first: Tensor, second: Tensor, chunk: range) -> Tensor:
        """Return the first layer, max(B, -A) + A: (displacements · B, channels, H, W)."""
        side, (batch, channels, height, width) = 2 * self.radius + 1, minus_first.shape
        result = minus_first.new_empty(len(chunk) * batch, height, width, channels)
        result = result.permute(0, 3, 1, 2)  # channels last
        for displacement, target in zip(chunk, result.split(batch), strict=True):
            u, v = divmod(displacement, side)
            moved = second[..., v : v + height, u : u + width]
            torch.maximum(moved, minus_first, out=target)
            target.sub_(minus_first)
        return result


def score_of_corners(conv: nn.Conv2d) -> tuple[Tensor, Tensor]:
    """The last layer from corners to the four scores of each coarse pixel: (4, 4·in, 2, 2), (4,).

    A score and its neighbours lie around two corners along each axis.
    """
    assert conv.bias is not None
    weight = conv.weight.detach()[0]  # (in, 3, 3)
    cells = weight.new_zeros(2, 2, 2, 2, len(weight), 2, 2)  # scores, pixels of a corner, corners
    for p, q, down, across in product(range(2), range(2), range(3), range(3)):
        (i, a), (j, b) = divmod(p + down, 2), divmod(q + across, 2)
        cells[p, q, a, b, :, i, j] = weight[:, down, across]
    return cells.flatten(0, 1).flatten(1, 3), conv.bias.detach().repeat(4)


def inside_image(corners: Tensor) -> Tensor:
    """Set pixels of corners at the border that lie outside the image to zero, in place."""
    pixels = corners.unflatten(1, (2, 2, -1))
    pixels[:, 0, :, :, 0] = 0
    pixels[:, 1, :, :, -1] = 0
    pixels[:, :, 0, :, :, 0] = 0
    pixels[:, :, 1, :, :, -1] = 0
    return corners


def scale_of(reach: Tensor) -> Tensor:
    """(C,) ranges -> the step of uint8; channels that are always zero get any."""
    return reach.clamp(min=1e-6) / 255


def levels_of(estimator: FlowEstimator) -> dict[int, DiclLevel]:
    """The levels of its network by stride."""
    network = next(part for part in vars(estimator).values() if isinstance(part, nn.Module))
    levels = cast(Mapping[str, nn.Module], network.levels)
    return {int(stride): cast(DiclLevel, level) for stride, level in levels.items()}


def find_extremes(estimator: FlowEstimator, pairs: Sequence[Sequence[Array]]) -> Extremes:
    """Run a float32 estimator, and watch what its matching nets compute."""
    found: Extremes = {}

    def watch(key: tuple[int, str], _: nn.Module, __: object, output: Tensor) -> None:
        low, high = output.amin((0, 2, 3)), output.amax((0, 2, 3))
        known = found.get(key, (low, high))
        found[key] = torch.minimum(known[0], low), torch.maximum(known[1], high)

    handles = []
    for stride, level in levels_of(estimator).items():
        matcher = cast(FactoredMatcher, level.matcher)
        parts = {"first": matcher.first.first_term, "second": matcher.first.second_term}
        parts |= {f"{n}": part for n, part in enumerate([matcher.down, *matcher.inner])}
        for name, part in parts.items():
            handles.append(part.register_forward_hook(partial(watch, (stride, name))))
    for frames in pairs:
        estimator(*frames)
    for handle in handles:
        handle.remove()
    return found


def with_int8(quality: str, extremes: Extremes, strides: Sequence[int]) -> FlowEstimator:
    """Open an estimator in bfloat16 whose levels at `strides` match in int8."""
    plain = levels_of(load(None, "cpu", "fp32", "plain", quality=quality))
    estimator = load(None, "cpu", "bf16", "fast", quality=quality)
    for stride in strides:
        matcher = cast(PairwiseMatcher, plain[stride].matcher)
        levels_of(estimator)[stride].matcher = Int8Matcher(matcher, extremes, stride).eval()
    return estimator


@contextmanager
def clocked(owner: object, name: str, into: dict[str, float], key: str) -> Iterator[None]:
    """Add up the processor time of a method as `into[key]`."""
    method = getattr(owner, name)

    def run(*inputs: object) -> object:
        start = process_time()
        result = method(*inputs)
        into[key] += process_time() - start
        return result

    object.__setattr__(owner, name, run)
    try:
        yield
    finally:
        object.__delattr__(owner, name)


def measure_shares(
    estimator: FlowEstimator, frames: Sequence[Array], repeats: int
) -> dict[str, float]:
    """Milliseconds of an estimate and of parts of its matching nets: medians."""
    runs = []
    for _ in range(repeats + 2):
        times: dict[str, float] = defaultdict(float)
        with ExitStack() as stack:
            for level in levels_of(estimator).values():
                matcher = cast(DirectMatcher | FactoredMatcher, level.matcher)
                factored = isinstance(matcher, FactoredMatcher)
                first = (matcher, "_first_layer") if factored else (matcher.first, "forward")
                for part in (matcher.down, *matcher.inner):
                    stack.enter_context(clocked(part, "forward", times, "convolutions"))
                stack.enter_context(clocked(matcher.score, "forward", times, "scores"))
                stack.enter_context(clocked(first[0], first[1], times, "first layers"))
                stack.enter_context(clocked(matcher, "forward", times, "matching nets"))
            start = process_time()
            estimator(*frames)
            times["estimate"] = process_time() - start
        runs.append(times)
    return {key: round(1000 * median(run[key] for run in runs[2:]), 1) for key in runs[0]}


def time_in_turns(
    estimators: Mapping[str, FlowEstimator], frames: Sequence[Array], repeats: int
) -> dict[str, dict[str, float]]:
    """Milliseconds of the processor for an estimate, in runs that alternate.

    `times faster` is the median over the rounds: the speed of a busy machine changes meanwhile.
    """
    runs: dict[str, list[float]] = {name: [] for name in estimators}
    for number in range(repeats + 2):
        for name, estimator in estimators.items():
            start = process_time()
            estimator(*frames)
            if number > 1:
                runs[name].append(process_time() - start)
    first = next(iter(runs.values()))
    ratios = {name: map(truediv, first, times) for name, times in runs.items()}
    return {
        name: summary(times) | {"times faster": round(median(ratios[name]), 3)}
        for name, times in runs.items()
    }


def summary(times: Sequence[float]) -> dict[str, float]:
    """Median and minimum of seconds, in milliseconds."""
    return {"median": round(1000 * median(times), 3), "minimum": round(1000 * min(times), 3)}


def time_layers(size: tuple[int, int], repeats: int) -> dict[str, dict[str, dict[str, float]]]:
    """Milliseconds of each convolution of a chunk at the strides 16, 8 and 4, in both formats."""
    plain, found = levels_of(load(None, "cpu", "fp32", "plain")), {}
    for stride in (16, 8, 4):
        matcher = cast(PairwiseMatcher, plain[stride].matcher)
        fast = FactoredMatcher(matcher, torch.bfloat16)
        width, height = (side // stride for side in size)
        x = torch.rand(1, fast.down.weight.shape[1], height, width)
        for name, like in zip(
            ("down", "inner 1", "inner 2", "up"), (fast.down, *fast.inner), strict=True
        ):
            if name == "down":
                count = min(49, displacements_at_once(like.prepare(x), None))
                x = x.expand(count, -1, -1, -1)
            weight, bias = like.weight.float(), like.bias.float()
            scales = torch.ones(weight.shape[1]), torch.ones(len(weight))
            int8 = Int8Conv(like.stride[0], like.padding[0], weight, bias, *scales)
            inputs = (
                like.prepare(x),
                (50 * x).to(torch.uint8).contiguous(memory_format=torch.channels_last),
            )
            x = like(inputs[0]).float()
            calls = {"bf16": partial(like, inputs[0]), "int8": partial(int8, inputs[1])}
            if name == "down":
                calls["bf16"] = partial(like, inputs[0], like(inputs[0]))
            runs: dict[str, list[float]] = {key: [] for key in calls}
            for _, (key, call) in product(range(repeats), calls.items()):
                start = process_time()
                call()
                runs[key].append(process_time() - start)
            found[f"{stride} {name}"] = {key: summary(run) for key, run in runs.items()}
    return found


def measure_errors(
    estimators: Mapping[str, FlowEstimator], folder: Path, names: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """By set and pair: the EPE of each estimator, and the distance from the first one's flow."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in names:
        for pair in find_pairs(folder, name):
            frames, sample = read_frames(pair), read_sample(pair)
            flows = {key: estimator(*frames).flow for key, estimator in estimators.items()}
            base, numbers = next(iter(flows.values())), {}
            for key, flow in flows.items():
                error = endpoint_error(flow, sample.flow)[sample.valid]
                numbers[f"{key} EPE"] = float(f"{error.mean():.5g}")
                distance = np.linalg.norm(flow - base, axis=-1).mean()
                numbers[f"{key} px"] = float(f"{distance:.4g}")
            found.setdefault(name, {})[pair.name] = numbers
            print(name, pair.name, numbers, flush=True)
    return found


def summarize(errors: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """The mean of each number, every set counting equally."""
    sets = [list(pairs.values()) for pairs in errors.values()]
    return {
        key: round(fmean(fmean(one[key] for one in pairs) for pairs in sets), 5)
        for key in sets[0][0]
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all, and return the document."""
    if not processor().bf16:
        raise InputError("this CPU has no bf16 arithmetic to compare with")
    torch.set_num_threads(1)
    size = cast(tuple[int, int], tuple(map(int, arguments.size.split("x"))))
    demo = [[read_image(DEMO / name) for name in names] for names in PAIRS_OF_DEMO]
    frames = [cv2.resize(frame, size) for frame in demo[0]]
    document: dict[str, Any] = {**describe_machine(torch.device("cpu"))}
    document |= {"date": date.today().isoformat(), "size": arguments.size}
    document["layers"] = time_layers(size, arguments.repeats)
    print(document["layers"], flush=True)
    for quality in ("live", "normal"):
        exact = load(None, "cpu", "fp32", "fast", quality=quality)
        extremes = find_extremes(exact, demo)
        estimators = {"bf16": load(None, "cpu", "bf16", "fast", quality=quality)}
        entry = document[quality] = {
            "shares": measure_shares(estimators["bf16"], frames, arguments.repeats)
        }
        for name, strides in VARIANTS.items():
            estimators[name] = with_int8(quality, extremes, strides)
        entry["milliseconds"] = time_in_turns(estimators, frames, arguments.repeats)
        print(quality, entry, flush=True)
        if quality == "normal":
            methods = {"fp32": exact, **{name: estimators[name] for name in COMPARED}}
            entry["pairs"] = measure_errors(methods, arguments.folder, arguments.set or list(SETS))
            entry["mean of the sets"] = summarize(entry["pairs"])
            print(entry["mean of the sets"], flush=True)
    return document


def main() -> None:
    """Print what was measured, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = os.environ.get("DICL_FLOW_DATASETS")
    parser.add_argument("folder", type=Path, nargs="?", default=folder and Path(folder))
    parser.add_argument("--size", default="640x384", help="of the pair whose time is measured")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--set", action="append", help="only this set; repeatable")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    document = run(arguments)
    if arguments.output is not None:
        write_files({arguments.output: f"{json.dumps(document, indent=1)}\n".encode()})


if __name__ == "__main__":
    main()
