"""Writes rendered pairs to a folder that can be trained on, with a sheet to look at them."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..data import FlowSample
from ..files import Array, encode_flow, encode_image, write_files
from ..pictures.sheets import contact_sheet, thumbnail
from ..render import MotionStatistics, Renderer
from .sample_sheet import SAMPLE_COLUMNS, sample_label, sample_row

_ON_SHEET = 16  # pairs; more would not be looked at


def write_pairs(
    renderer: Renderer, folder: Path, numbers: Iterable[int]
) -> tuple[MotionStatistics, Array]:
    """Write pairs by their numbers; return the statistics of their motion, and a sheet.

    They are rendered one by one, so that a pair does not depend on how many there are.
    """
    statistics, rows, labels = MotionStatistics(), [], []
    for number in numbers:
        rendered, name = renderer.render(1, number), f"scene_{number:04d}"
        statistics.add(rendered)
        sample = rendered.to_samples()[0]
        write_files(_files(folder / name, sample, rendered.occluded[0].cpu().numpy()))
        if number < _ON_SHEET:
            rows.append([thumbnail(picture) for picture in sample_row(sample)])
            labels.append(sample_label(name, sample))
    return statistics, contact_sheet(rows, labels, SAMPLE_COLUMNS)


def _files(name: Path, sample: FlowSample, occluded: Array) -> dict[Path, bytes]:
    """Return all files of a pair, in the layout that the data set `pairs` reads."""
    mask = np.where(occluded, 255, 0).astype(np.uint8)
    flow = np.where(sample.valid[..., None], sample.flow, np.float32(np.nan))
    images = {"_img1.png": sample.image1, "_img2.png": sample.image2, "_occ.png": mask}
    contents = {end: encode_image(end, image) for end, image in images.items()}
    contents["_flow.flo"] = encode_flow("_flow.flo", flow)
    return {name.with_name(name.name + end): data for end, data in contents.items()}
