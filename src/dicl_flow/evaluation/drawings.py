"""Pictures of estimates and their errors: the demo, the worst pairs, sparsification curves."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..data import FlowPair, read_frames, read_sample
from ..errors import InputError
from ..files import Array
from ..pictures.figures import contact_sheet, draw_figure, encode_figure
from ..pictures.keys import add_key
from ..pictures.visualize import draw_estimate, error_to_rgb, flow_to_rgb, full_color
from .metrics import REMOVED, Result, endpoint_error, sparsification_curves, warping_difference

if TYPE_CHECKING:
    from ..estimation.result import FlowResult

_CELL = (512, 384)  # px, the size of the packaged frames
_BRIGHTEST = 5.0  # px of error
_CREDIT = "made from Big Buck Bunny, (c) 2008 Blender Foundation, www.bigbuckbunny.org, CC BY 3.0"


def draw_demo(pair: FlowPair, result: "FlowResult") -> Array:
    """Draw a pair and its estimate, (H, W, 3) RGB."""
    rows = demo_rows(pair, result).items()
    sheets = [contact_sheet([[*row.values()]], [line], [*row], *_CELL) for line, row in rows]
    return np.concatenate(sheets)


def demo_rows(pair: FlowPair, result: "FlowResult") -> dict[str, dict[str, Array]]:
    """Return two rows, each a line of text and its pictures by caption."""
    image1, image2 = read_frames(pair)
    sample = read_sample(pair) if pair.truth else None
    longest = full_color(sample.flow if sample else result.flow)
    estimate = partial(draw_estimate, image1=image1, flow=result.flow, confidence=result.confidence)

    def draw(kind: str) -> Array:
        return add_key(kind, estimate(kind, maximum=longest), longest)

    inputs = {
        "frame 1": image1,
        "frame 2": image2,
        "estimated flow as arrows": draw("arrows"),
    }
    estimates = {
        f"estimated flow, full colour is {longest:.0f} px": draw("image"),
        "frame 1 coloured by it": draw("overlay"),
        "confidence, white is confident": np.dstack([draw("confidence")] * 3),
    }
    line = ""
    if sample:
        error = endpoint_error(result.flow, sample.flow)
        inputs["truth"] = add_key("image", flow_to_rgb(sample.flow, longest), longest)
        caption = f"error, bright is {_BRIGHTEST:.0f} px or more"
        estimates[caption] = error_to_rgb(error, sample.valid, _BRIGHTEST)
        line = f"EPE {error[sample.valid].mean():.2f} px"
    return {f"{pair.name}: {_CREDIT}": inputs, line: estimates}


def truth_and_errors(
    pair: FlowPair, frames: tuple[Array, Array], flows: Mapping[str, Array]
) -> tuple[Array | None, dict[str, tuple[Array, Array]]]:
    """The truth, NaN where unknown, and by method the (H, W) error and where it is known.

    Without truth, the error is the difference between frame 1 and the warped frame 2.
    """
    if pair.truth is None:
        return None, {name: warping_difference(flow, *frames) for name, flow in flows.items()}
    sample = read_sample(pair)
    truth = np.where(sample.valid[..., None], sample.flow, np.float32(np.nan))
    errors = {name: endpoint_error(flow, sample.flow) for name, flow in flows.items()}
    return truth, {name: (error, sample.valid) for name, error in errors.items()}


def draw_prediction(pair: FlowPair, estimate: Array) -> Array:
    """Draw frames, truth if there is one, (H, W, 2) estimate and its error as one RGB picture."""
    frames = read_frames(pair)
    truth, errors = truth_and_errors(pair, frames, {"": estimate})
    error, valid = errors[""]
    known = error[valid] if valid.any() else np.zeros(1)
    brightest = max(float(np.percentile(known, 99)), 1.0)  # outliers do not make the rest dark
    picture = error_to_rgb(error, valid, brightest)
    labels, rows = ["frames"], [[*frames]]
    if truth is None:
        header = f"warping error {known.mean():.2f}, no truth   {pair.name}"
        labels += [f"estimate, and warping error, bright {brightest:.1f} grey levels"]
        rows += [[flow_to_rgb(estimate), picture]]
    else:
        longest = full_color(truth)
        header = f"EPE {known.mean():.2f} px   {pair.name}"
        labels += [f"truth and estimate, full colour {longest:.1f} px"]
        labels += [f"error, bright {brightest:.1f} px"]
        rows += [[flow_to_rgb(truth, longest), flow_to_rgb(estimate, longest)], [picture]]
    return contact_sheet(rows, labels, (header, ""), *_CELL)


def draw_sparsification(results: Sequence[Result]) -> bytes:
    """Return a PNG: a panel for each data set, a curve for each method; dashed: best ranking."""
    panels: dict[str, list[Result]] = {}
    for result in results:
        if "ause" in result.total.parts:
            panels.setdefault(result.label, []).append(result)
    if not panels:
        raise InputError("nothing to draw: no method has a confidence, or no pair has a truth")
    figure = draw_figure(4.2 * len(panels), 3.6)
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, group) in zip(all_axes, panels.items(), strict=True):
        for result in group:
            curves = sparsification_curves(result.total)
            label = f"{result.method}, AUSE {result.total.values['ause']:.3f}"
            (line,) = axes.plot(100 * REMOVED, curves["error"], label=label)
            axes.plot(100 * REMOVED, curves["oracle"], "--", color=line.get_color())
        axes.set(title=title, xlabel="least confident pixels removed (%)", ylim=(0, None))
        axes.set_ylabel("error of the rest / error of all")
        axes.legend()
        axes.grid(alpha=0.3)
    return encode_figure(figure)
