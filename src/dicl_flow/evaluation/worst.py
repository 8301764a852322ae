"""Draws estimates with their errors, for the worst pairs of an evaluation."""

import numpy as np

from ..data import FlowPair, read_frames, read_sample
from ..files import Array
from ..pictures.sheets import contact_sheet
from ..pictures.visualize import error_to_rgb, flow_to_rgb, full_color
from .metrics import endpoint_error
from .score import warping_difference

_CELL = (512, 384)  # px


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
