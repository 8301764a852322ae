"""How large the values get that int8 rounds: measured in float32, on a few frames."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn

from ..models import DiclFlow
from ..models.blocks import ContextNet
from ..models.dicl import DiclLevel
from ..ops import size_of
from .cpu import AcceleratedDiclFlow, FactoredMatcher
from .folded import FoldedConv, corners_inside
from .settings import has_winograd

_FEW_CELLS = 100  # of a map: those of stride 32 and coarser, on small frames
_Block = TypeVar("_Block", bound=nn.Module)

Extremes = Mapping[str, Tensor]
"""By STRIDE.LAYER, for each channel: (2, C) the least and the largest value of the two terms of the
first layer; (C,) the largest value of a layer that follows, the least being zero.
By features.NAME and STRIDE.context.LAYER: (in + out,) the largest values that a block sees and
gives."""


def measure_extremes(model: DiclFlow, frames: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """How large values get in float32, on pairs of frames, (B, 3, H, W) in [-1, 1]."""
    exact = AcceleratedDiclFlow(model, torch.float32, None, torch.device("cpu"))
    with torch.inference_mode(), _watched(exact) as (levels, blocks):
        for image1, image2 in frames:
            exact(image1, image2)
    extremes = {name: torch.stack(seen).amax(0) for name, seen in blocks.items()}
    for stride in model.levels:
        seen = [torch.stack(ranges) for ranges in levels[stride]]  # (calls, 2, C) of each layer
        both = torch.cat(seen[:2])
        layers = [torch.stack([both[:, 0].amin(0), both[:, 1].amax(0)])]
        layers += [ranges[:, 1].amax(0) for ranges in seen[2:]]
        if has_winograd():  # the last one is in cells, whose last pixel is a corner's first
            layers[-1] = layers[-1].unflatten(0, (4, -1)).flip(0).flatten()
        extremes |= {f"{stride}.{number}": layer for number, layer in enumerate(layers)}
    return extremes


def blocks_behind_first(pyramid: nn.Module, kind: type[_Block]) -> Iterator[tuple[str, _Block]]:
    """Yield the blocks of a feature net, plain or folded, with their names."""
    for name, block in pyramid.named_modules():
        if isinstance(block, kind) and name != "stem.0":
            yield name, block


def middle_layers(context: ContextNet) -> dict[int, nn.Module]:
    """The layers of a context net, plain or folded, that neither see the flow nor give it."""
    return dict([*enumerate(context.layers)][1:-1])


_Levels: TypeAlias = Mapping[str, list[list[Tensor]]]  # (2, C) by stride, layer and call
_Blocks: TypeAlias = Mapping[str, list[Tensor]]  # (in + out,) by name and call


@contextmanager
def _watched(model: AcceleratedDiclFlow) -> Iterator[tuple[_Levels, _Blocks]]:
    """Note the extremes of the layers of matching nets, and of blocks of the other nets."""
    levels: dict[str, list[list[Tensor]]] = {}
    blocks: dict[str, list[Tensor]] = {}
    handles = []
    watched = {f"features.{n}": b for n, b in blocks_behind_first(model.features, FoldedConv)}
    for stride, level in cast(Iterable[tuple[str, DiclLevel]], model.levels.items()):
        if level.context is not None:
            found = middle_layers(level.context).items()
            watched |= {f"{stride}.context.{number}": cast(FoldedConv, b) for number, b in found}
        matcher = cast(FactoredMatcher, level.matcher)
        terms = (matcher.first.first_term, matcher.first.second_term)
        levels[stride] = []
        for part in (*terms, matcher.down, *matcher.inner):
            levels[stride].append([])
            corners = part is matcher.inner[-1] and not has_winograd()
            handles.append(part.register_forward_hook(partial(_note, levels[stride][-1], corners)))
    for name, block in watched.items():
        blocks[name] = []
        handles.append(block.register_forward_hook(partial(_note_block, blocks[name])))
    try:
        yield levels, blocks
    finally:
        for handle in handles:
            handle.remove()


def _note_block(seen: list[Tensor], _: object, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    """Add the largest value of each channel of both (B, C, H, W): (in + out,).

    Maps of few cells hardly show how large values get: twice what they show.
    """
    maps = (inputs[0], output)
    largest = [x.amax((0, 2, 3)) * (2 if prod(size_of(x)) < _FEW_CELLS else 1) for x in maps]
    seen.append(torch.cat(largest))


def _note(seen: list[Tensor], corners: bool, _: object, __: object, output: Tensor) -> None:
    """Add the least and the largest value of each channel of (B, C, H, W): (2, C)."""
    inside = corners_inside(output) if corners else output
    seen.append(torch.stack([inside.amin((0, 2, 3)), inside.amax((0, 2, 3))]))
