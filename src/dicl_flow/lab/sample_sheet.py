"""Rows of a contact sheet for samples of a data set or rendered scenes."""

import numpy as np

from ..data import FlowSample
from ..files import Array
from ..pictures.visualize import flow_to_rgb

SAMPLE_COLUMNS = ("frame 1", "frame 2", "flow", "valid white, occluded red")
_OCCLUDED = (220, 40, 40)


def sample_row(sample: FlowSample) -> list[Array]:
    """Return the pictures of a sample as in `SAMPLE_COLUMNS`; only frames without ground truth."""
    if not sample.valid.any():
        return [sample.image1, sample.image2]
    flow = np.where(sample.valid[..., None], sample.flow, np.float32(np.nan))
    mask = np.repeat(np.where(sample.valid, 255, 0).astype(np.uint8)[..., None], 3, axis=2)
    if sample.occluded is not None:
        mask[sample.occluded & sample.valid] = _OCCLUDED
    return [sample.image1, sample.image2, flow_to_rgb(flow), mask]


def sample_label(name: str, sample: FlowSample) -> str:
    """One line about a sample: name, size and, if there is ground truth, motion."""
    height, width = sample.valid.shape
    label = f"{name}   {width}x{height}"
    if not sample.valid.any():
        return f"{label}   no truth"
    longest = np.linalg.norm(sample.flow[sample.valid], axis=1).max()
    return f"{label}   valid {sample.valid.mean():.0%}   up to {longest:.1f} px"
