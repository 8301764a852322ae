"""The contact sheet of training pairs that TensorBoard shows."""

from collections.abc import Sequence

import numpy as np

from ..data import FlowBatch
from ..files import Array, to_uint8
from ..models import LevelFlow
from ..ops import upsample_flow
from ..pictures.visualize import flow_to_rgb, full_color

_ROWS = 4


def training_sheet(batch: FlowBatch, levels: Sequence[LevelFlow]) -> Array:
    """Frame 1, frame 2, truth and estimate of the first pairs of a batch, one row each."""
    size = (batch.flow.shape[-2], batch.flow.shape[-1])
    estimate = upsample_flow(levels[-1].refined.detach(), size)
    rows = []
    for index in range(min(_ROWS, len(batch.flow))):
        truth = batch.flow[index].permute(1, 2, 0).cpu().numpy()
        truth = np.where(batch.valid[index].cpu().numpy()[..., None], truth, np.nan)
        maximum = full_color(truth)
        found = estimate[index].permute(1, 2, 0).float().cpu().numpy()
        frames = [
            to_uint8(image[index].permute(1, 2, 0).float().nan_to_num().cpu().numpy())
            for image in (batch.image1, batch.image2)
        ]
        rows.append(np.hstack([*frames, flow_to_rgb(truth, maximum), flow_to_rgb(found, maximum)]))
    return np.vstack(rows)
