"""The matching probabilities of the levels of a network, before and after the projection."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..estimation.estimator import FlowEstimator, FlowResult, load
from ..estimation.inputs import Feeding
from ..files import Array
from ..models import FlowNetwork
from ..models.dicl import DiclLevel
from ..models.pwcnet import PwcLevel
from ..ops import displacement_probability, expected_displacement
from ..weights import resolve

_NO_TILES = 2**60  # bytes: a level must see the whole frame


class LevelVolume(NamedTuple):
    """The probabilities and flows of one level for one pair."""

    before: Tensor
    """(U, V, H, W): the probability of each displacement: a softmax of the matcher's scores. Hosts
    other than "dicl" have no such softmax; they filter or decode the scores instead."""
    after: Tensor  # the same after the projection; equal if there is none
    start: Tensor  # (2, H, W): the coarser flow that the displacements are added to
    matched: Tensor  # (2, H, W): the matched flow of the level
    refined: Tensor  # (2, H, W): the matched flow after correction by the context net


@dataclass(frozen=True)
class Volumes:
    """All levels for one pair."""

    model: FlowNetwork
    levels: dict[int, LevelVolume]  # by stride, coarsest first
    frame_size: tuple[int, int]
    feeding: Feeding  # how the network was fed with the frame

    @property
    def network_size(self) -> tuple[int, int]:
        """The frame as the network sees it, padded or resized."""
        return self.feeding.seen(self.frame_size)

    @property
    def resized_size(self) -> tuple[int, int]:
        """The frame as the network sees it, without the padding."""
        return self.feeding.resized(self.frame_size)

    def seen(self, level_map: Tensor) -> Tensor:
        """Cut off of a (..., h, w) map what lies in the padding."""
        height, width = level_map.shape[-2:]
        rows = -(-self.resized_size[0] * height // self.network_size[0])
        columns = -(-self.resized_size[1] * width // self.network_size[1])
        return level_map[..., :rows, :columns]

    def cell(self, stride: int, x: int, y: int) -> tuple[int, int]:
        """The cell of a level, (column, row), that contains the pixel (x, y) of the frame."""
        frame, resized, network, level = self._sizes(stride)
        place = (np.array([y, x]) + 0.5) * resized / frame - 0.5  # pixels are areas when resized
        aligned = self.model.config.host_record.aligned_corners
        row, column = _cell(place, network, level, aligned=aligned)
        return int(column), int(row)

    def cell_size(self, stride: int) -> Array:
        """The width and height of a cell of the level, in pixels of the frame."""
        frame, resized, network, level = self._sizes(stride)
        return (frame * network / resized / level)[::-1]

    def _sizes(self, stride: int) -> Array:
        """Height and width of the frame, resized, as the network sees it, and of a level's map."""
        level = self.levels[stride].start.shape[-2:]
        return np.array([self.frame_size, self.resized_size, self.network_size, level])

    def to_frame(self, flow: Tensor) -> Array:
        """Bring a level's flow (2, h, w) to the frame, (H, W, 2), as the estimator does."""
        full = self.model.upsample(flow[None], self.network_size)
        return self.feeding.unfit_flow(full, self.frame_size)[0].permute(1, 2, 0).cpu().numpy()


def open_networks(
    weights: Sequence[str | None], device: str, precision: str = "auto", backend: str = "plain"
) -> dict[str, FlowEstimator]:
    """Load networks by the names used in figures; kernels on CUDA have no volumes to record."""
    estimators: dict[str, FlowEstimator] = {}
    for entry in weights or [None]:
        name = weights_name(entry)
        if name in estimators:
            raise InputError(f"two weights files are called {name!r}; rename one of them")
        estimators[name] = estimator = load(entry, device, precision, backend, _NO_TILES)
        if not has_scores(estimator):
            raise InputError(
                f"{name} has the host {estimator.model.config.host!r} with its own matcher, which "
                f"does not produce comparable scores; this analysis needs a matcher such as 'dicl' "
                f"in it"
            )
    return estimators


def has_scores(estimator: FlowEstimator) -> bool:
    """Whether the matcher of a network gives each displacement a score."""
    config = estimator.model.config
    return config.host_record.has_scores or config.matcher is not None


def weights_name(weights: str | None) -> str:
    """The name of a file without its suffix, or that of its folder for weights of a run."""
    path = resolve(weights)
    return path.resolve().parent.name if path.stem == "weights" else path.stem


def has_projection(estimator: FlowEstimator) -> bool:
    """Whether a network has DAP layers."""
    return estimator.model.config.projection


def read_volumes(estimator: FlowEstimator, image1: Array, image2: Array) -> Volumes:
    """Run the network on two (H, W, 3) frames and record the volumes of its levels."""
    return estimate_with_volumes(estimator, image1, image2)[1]


def estimate_with_volumes(
    estimator: FlowEstimator, image1: Array, image2: Array
) -> tuple[FlowResult, Volumes]:
    """Estimate the flow of two (H, W, 3) frames, and record the volumes behind it."""
    kept: dict[Any, tuple[Any, Any]] = {}  # by module: its inputs and its output
    model = estimator.model
    with ExitStack() as hooks:
        for level in model.levels.values():
            parts: list[Any] = [level, level.matcher]
            parts += [level.projection] if isinstance(level, DiclLevel) else []
            for part in parts:
                hook = part.register_forward_hook(
                    lambda module, inputs, output: kept.update({module: (inputs, output)})
                )
                hooks.callback(hook.remove)
        result = estimator(image1, image2)
    levels = {int(stride): _volume(level, kept) for stride, level in model.levels.items()}
    height, width = image1.shape[:2]
    return result, Volumes(model, levels, (height, width), estimator.plan.last)


def _cell(place: Any, large: Any, small: Any, *, aligned: bool) -> Any:
    """The cell of a map of `small` sides at a place of a frame of `large` sides."""
    if aligned:
        return np.rint(place * (small - 1) / (large - 1)).clip(0).astype(int)
    return ((place + 0.5) * small / large).astype(int)


def _volume(level: Any, kept: Mapping[Any, tuple[Any, Any]]) -> LevelVolume:
    inputs, output = kept[level]
    scores = projected = kept[level.matcher][1].squeeze(1)  # (B, U, V, H, W)
    # the coarser flow (B, 2, H, W), in pixels of the level; None at the coarsest
    flow, start = output, inputs[2]
    if isinstance(level, DiclLevel):
        projected, start = kept[level.projection][1], inputs[3]
    else:
        flow = output[0]
    if isinstance(level, PwcLevel) and start is not None:
        start = level.scale * start.flow
    return LevelVolume(
        displacement_probability(scores)[0],
        displacement_probability(projected)[0],
        torch.zeros_like(flow.matched[0]) if start is None else start[0],
        flow.matched[0],
        flow.refined[0],
    )


def winner(probability: Tensor) -> Tensor:
    """Winner takes all: (U, V, H, W) -> the most probable displacement (2, H, W), x first."""
    num_u, num_v = probability.shape[:2]
    best = probability.flatten(0, 1).argmax(0)
    return torch.stack([best // num_v - num_u // 2, best % num_v - num_v // 2]).float()


def soft_argmax(probability: Tensor) -> Tensor:
    """The expected displacement: (U, V, H, W) -> (2, H, W)."""
    return expected_displacement(probability[None])[0]


def peak_distance(probability: Tensor) -> Tensor:
    """The paper's d_peak: (U, V, ...) -> highest minus second highest probability (...)."""
    first, second = probability.flatten(0, 1).topk(2, dim=0).values
    return first - second
