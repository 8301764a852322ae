"""Data sets: checked, drawn on a sheet, rendered into a folder, and how fast they are loaded.

Imports torch only to render and to load, so that a damaged data set is reported at once.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..config import AugmentConfig
from ..data import FlowPair, FlowSample, Survey, collate
from ..data.augmentation import FlowDataset, augment_color, augment_erase, augment_geometry
from ..errors import InputError
from ..files import Array, encode_flow, encode_image, to_uint8, write_files
from ..pictures.figures import contact_sheet, thumbnail
from ..pictures.visualize import flow_to_rgb

if TYPE_CHECKING:
    from ..render import Clip, MotionStatistics, Renderer

SAMPLE_COLUMNS = ("frame 1", "frame 2", "flow", "valid white, occluded red")
_OCCLUDED = (220, 40, 40)
_ON_SHEET = 16  # pairs; more would not be looked at
_NUM_TRACKS = 256


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


class Check(NamedTuple):
    """What `check_pairs` has found."""

    survey: Survey
    sheet: Array | None
    """A contact sheet, if any pair was to be drawn and could be read."""
    broken: Sequence[Exception]
    """One for each pair that cannot be read."""


def spread(pairs: Sequence[FlowPair], count: int) -> list[FlowPair]:
    """Return `count` pairs (or all, when there are fewer) at even distances."""
    step = max(1.0, len(pairs) / count)
    return [pairs[int(index * step)] for index in range(min(count, len(pairs)))]


def check_pairs(pairs: Iterable[FlowPair], drawn: Collection[FlowPair]) -> Check:
    """Read pairs one by one; those among `drawn` are put on the sheet."""
    survey, broken, rows, labels = Survey(), [], [], []
    for pair in pairs:
        try:
            sample = survey.add(pair)
        except (InputError, OSError) as error:
            broken.append(error)
            continue
        if pair in drawn:
            rows.append([thumbnail(picture) for picture in sample_row(sample)])
            labels.append(sample_label(pair.name, sample))
    sheet = contact_sheet(rows, labels, SAMPLE_COLUMNS) if rows else None
    return Check(survey, sheet, broken)


def write_pairs(
    renderer: "Renderer", folder: Path, numbers: Iterable[int]
) -> "tuple[MotionStatistics, Array]":
    """Write pairs by their numbers; return the statistics of their motion, and a sheet.

    They are rendered one by one, so that a pair does not depend on how many there are.
    """
    from ..render import MotionStatistics

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


def write_clip(clip: "Clip", folder: Path, numbers: Iterable[int]) -> list[Path]:
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


def measure_loader(dataset: FlowDataset, batch_size: int, workers: int, seconds: float) -> float:
    """Pairs per second of the loader, measured over `seconds` after its start."""
    from ..data.loader import stream_batches

    batches = stream_batches(dataset, batch_size, workers=workers)
    for _ in range(1 + 2 * workers):  # what was prepared during the start does not count
        next(batches)
    pairs, start = 0, perf_counter()
    while perf_counter() < start + seconds:
        next(batches)
        pairs += batch_size
    return pairs / (perf_counter() - start)


def measure_stages(
    pairs: Sequence[FlowPair], config: AugmentConfig, batch_size: int, seconds: float
) -> dict[str, float]:
    """Milliseconds per pair of each stage in one process, measured over `seconds`."""
    from ..data.loader import batch_keys

    totals = dict.fromkeys(("reading", "geometry", "colour", "collating"), 0.0)
    dataset = FlowDataset(pairs, config, seed=0)
    end = perf_counter() + seconds
    batches = 0
    for keys in batch_keys(dataset, batch_size):
        samples = [_timed_sample(dataset, index, config, totals) for _, index in keys]
        with _timed(totals, "collating"):
            collate(samples)
        batches += 1
        if perf_counter() >= end:
            break
    return {stage: 1000 * total / (batches * batch_size) for stage, total in totals.items()}


def _timed_sample(
    dataset: FlowDataset, index: int, config: AugmentConfig, totals: dict[str, float]
) -> FlowSample:
    """Do what `FlowDataset` does, and time each stage."""
    with _timed(totals, "reading"):
        sample = dataset.read(index)
    sparse, generator = dataset.pairs[index].sparse, np.random.default_rng()
    with _timed(totals, "colour"):
        sample = augment_erase(sample, config, generator)
    with _timed(totals, "geometry"):
        sample = augment_geometry(sample, config, generator, sparse=sparse)
    with _timed(totals, "colour"):
        return augment_color(sample, config, generator, sparse=sparse)


@contextmanager
def _timed(totals: dict[str, float], stage: str) -> Iterator[None]:
    start = perf_counter()
    yield
    totals[stage] += perf_counter() - start
