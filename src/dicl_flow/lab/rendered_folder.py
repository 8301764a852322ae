"""Writes rendered pairs or a clip to a folder that can be trained on."""

from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import numpy as np

from ..data import FlowSample
from ..files import Array, encode_flow, encode_image, to_uint8, write_files
from ..pictures.sheets import contact_sheet, thumbnail
from ..render import Clip, MotionStatistics, Renderer
from .sample_sheet import SAMPLE_COLUMNS, sample_label, sample_row

_ON_SHEET = 16  # pairs; more would not be looked at
_NUM_TRACKS = 256


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


def write_clip(clip: Clip, folder: Path, numbers: Iterable[int]) -> list[Path]:
    """Write frames, flow to the next frame, masks and tracks; return the pictures and the tracks.

    The files of a frame are written together; `numbers` are those of all frames.
    """
    folder.mkdir(parents=True, exist_ok=True)
    frames = clip.frames().permute(0, 2, 3, 1).cpu().numpy()
    written = []
    for number in numbers:
        name = folder / f"{number:03d}"
        contents = {name.with_suffix(".png"): encode_image("x.png", to_uint8(frames[number]))}
        if number + 1 < clip.num_frames:
            flow, hidden = clip.flow(number, number + 1), clip.occluded(number, number + 1)
            known = np.where(clip.valid(flow).cpu().numpy(), flow.cpu().numpy(), np.float32(np.nan))
            mask = np.where(hidden.cpu().numpy(), 255, 0).astype(np.uint8)
            vectors = np.ascontiguousarray(known.transpose(1, 2, 0))
            contents[name.with_suffix(".flo")] = encode_flow("x.flo", vectors)
            contents[folder / f"{number:03d}_occ.png"] = encode_image("x.png", mask)
        write_files(contents)
        written.append(name.with_suffix(".png"))
    points, occluded = (part.cpu().numpy() for part in clip.tracks(_NUM_TRACKS))
    tracks, buffer = folder / "tracks.npz", BytesIO()
    np.savez_compressed(buffer, points=points, occluded=occluded)
    write_files({tracks: buffer.getvalue()})
    return [*written, tracks]


def _files(name: Path, sample: FlowSample, occluded: Array) -> dict[Path, bytes]:
    """Return all files of a pair, in the layout that the data set `pairs` reads."""
    mask = np.where(occluded, 255, 0).astype(np.uint8)
    flow = np.where(sample.valid[..., None], sample.flow, np.float32(np.nan))
    images = {"_img1.png": sample.image1, "_img2.png": sample.image2, "_occ.png": mask}
    contents = {end: encode_image(end, image) for end, image in images.items()}
    contents["_flow.flo"] = encode_flow("_flow.flo", flow)
    return {name.with_name(name.name + end): data for end, data in contents.items()}
