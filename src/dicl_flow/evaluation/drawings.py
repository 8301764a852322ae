"""Pictures of estimates and their errors: the demo, the worst pairs, sparsification curves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data import FlowPair, read_frames, read_sample
from ..errors import InputError
from ..files import Array
from ..pictures.figures import draw_figure, encode_figure
from ..pictures.sheets import contact_sheet
from ..pictures.visualize import (
    confidence_to_grey,
    draw_arrows,
    error_to_rgb,
    flow_to_rgb,
    full_color,
    overlay,
)
from .metrics import REMOVED, endpoint_error, sparsification_curves
from .score import Result, warping_difference

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


def draw_prediction(pair: FlowPair, estimate: Array) -> Array:
    """Draw frames, truth, (H, W, 2) estimate and its error as one RGB picture.

    Without truth, the error is the difference between frame 1 and the warped frame 2.
    """
    if pair.truth is None:
        return _draw_without_truth(pair, estimate)
    sample = read_sample(pair)
    error = endpoint_error(estimate, sample.flow)
    truth = np.where(sample.valid[..., None], sample.flow, np.float32(np.nan))
    longest = full_color(truth)
    picture, scale, mean = _error_picture(error, sample.valid)
    rows = [
        [sample.image1, sample.image2],
        [flow_to_rgb(truth, longest), flow_to_rgb(estimate, longest)],
        [picture],
    ]
    labels = ["frames", f"truth and estimate, full colour {longest:.1f} px", f"error, {scale} px"]
    return contact_sheet(rows, labels, (f"EPE {mean:.2f} px   {pair.name}", ""), *_CELL)


def _draw_without_truth(pair: FlowPair, estimate: Array) -> Array:
    frames = read_frames(pair)
    picture, scale, mean = _error_picture(*warping_difference(estimate, *frames))
    rows = [list(frames), [flow_to_rgb(estimate), picture]]
    labels = ["frames", f"estimate, and warping error, {scale} grey levels"]
    header = f"warping error {mean:.2f}, no truth   {pair.name}"
    return contact_sheet(rows, labels, (header, ""), *_CELL)


def _error_picture(error: Array, valid: Array) -> tuple[Array, str, float]:
    """Return the picture of an (H, W) error, its scale in words, and the mean."""
    known = error[valid] if valid.any() else np.zeros(1)
    brightest = max(float(np.percentile(known, 99)), 1.0)  # outliers do not make the rest dark
    return error_to_rgb(error, valid, brightest), f"bright {brightest:.1f}", float(known.mean())


def draw_sparsification(results: Sequence[Result]) -> bytes:
    """Return a PNG: a panel for each data set, a curve for each method; dashed: best ranking."""
    panels: dict[str, list[Result]] = {}
    for result in results:
        if "ause" in result.total.parts:
            panels.setdefault(result.label, []).append(result)
    if not panels:
        raise InputError("nothing to draw: no method has a confidence, or no pair has a truth")
    figure = draw_figure(4.2 * len(panels), 3.6)
    for axes, (label, group) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        _draw_panel(axes, group)
        axes.set(title=label, xlabel="least confident pixels removed (%)", ylim=(0, None))
    return encode_figure(figure)


def _draw_panel(axes: Any, results: Sequence[Result]) -> None:
    for result in results:
        curves = sparsification_curves(result.total)
        label = f"{result.method}, AUSE {result.total.values['ause']:.3f}"
        (line,) = axes.plot(100 * REMOVED, curves["error"], label=label)
        axes.plot(100 * REMOVED, curves["oracle"], "--", color=line.get_color())
    axes.set_ylabel("error of the rest / error of all")
    axes.legend()
    axes.grid(alpha=0.3)
