"""The pictures of `dicl-flow demo`: all there is to see of a pair, on one sheet."""

from typing import TYPE_CHECKING

import numpy as np

from ..data import FlowPair, read_frames, read_sample
from ..files import Array
from ..pictures.sheets import contact_sheet
from ..pictures.visualize import (
    confidence_to_grey,
    draw_arrows,
    error_to_rgb,
    flow_to_rgb,
    full_color,
    overlay,
)
from .metrics import endpoint_error

if TYPE_CHECKING:
    from ..estimation.result import FlowResult

_CELL = (512, 384)  # px, the size of the packaged frames
_BRIGHTEST = 5.0  # px of error
_CREDIT = "made from Big Buck Bunny, (c) 2008 Blender Foundation, www.bigbuckbunny.org, CC BY 3.0"


def draw_demo(pair: FlowPair, result: "FlowResult") -> Array:
    """Draw a pair and its estimate, (H, W, 3) RGB."""
    return np.concatenate(
        [
            contact_sheet([[*pictures.values()]], [line], [*pictures], *_CELL)
            for line, pictures in demo_rows(pair, result).items()
        ]
    )


def demo_rows(pair: FlowPair, result: "FlowResult") -> dict[str, dict[str, Array]]:
    """Return two rows, each a line of text and its pictures by caption."""
    image1, image2 = read_frames(pair)
    sample = read_sample(pair) if pair.truth else None
    longest = full_color(sample.flow if sample else result.flow)
    seen = {
        "frame 1": image1,
        "frame 2": image2,
        "estimated flow as arrows": draw_arrows(image1, result.flow),
    }
    found = {
        f"estimated flow, full colour is {longest:.0f} px": result.to_rgb(longest),
        "frame 1 coloured by it": overlay(image1, result.flow, longest),
        "confidence, white is confident": np.dstack([confidence_to_grey(result.confidence)] * 3),
    }
    line = ""
    if sample:
        error = endpoint_error(result.flow, sample.flow)
        seen["truth"] = flow_to_rgb(sample.flow, longest)
        caption = f"error, bright is {_BRIGHTEST:.0f} px or more"
        found[caption] = error_to_rgb(error, sample.valid, _BRIGHTEST)
        line = f"EPE {error[sample.valid].mean():.2f} px"
    return {f"{pair.name}: {_CREDIT}": seen, line: found}
