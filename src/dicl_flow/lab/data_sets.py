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
    from ..render import Clip, FluidClip, MotionStatistics, Renderer

_COLUMNS = ("frame 1", "frame 2", "flow", "valid white, occluded red")
_OCCLUDED = (220, 40, 40)
_ON_SHEET = 16  # pairs; more would not be looked at
_NUM_TRACKS = 256


def _labelled_row(name: str, sample: FlowSample) -> tuple[str, list[Array]]:
    """A line about a sample and its pictures: frames and, if there is ground truth, two more."""
    height, width = sample.valid.shape
    pictures, label = [sample.image1, sample.image2], f"{name}   {width}x{height}   no truth"
    if sample.valid.any():
        mask = _to_mask(sample.valid)[..., None].repeat(3, axis=2)
        if sample.occluded is not None:
            mask[sample.occluded & sample.valid] = _OCCLUDED
        pictures += [flow_to_rgb(_known(sample.flow, sample.valid)), mask]
        motion = f"up to {np.linalg.norm(sample.flow[sample.valid], axis=1).max():.1f} px"
        label = f"{name}   {width}x{height}   valid {sample.valid.mean():.0%}   {motion}"
    return label, [thumbnail(picture) for picture in pictures]


def _sheet(rows: Sequence[tuple[str, list[Array]]]) -> Array:
    return contact_sheet([row for _, row in rows], [label for label, _ in rows], _COLUMNS)


def _known(flow: Array, valid: Array) -> Array:
    """(H, W, 2): NaN where the flow is not valid."""
    return np.where(valid[..., None], flow, np.float32(np.nan))


def _to_mask(chosen: Array) -> Array:
    return np.where(chosen, 255, 0).astype(np.uint8)


class Check(NamedTuple):
    """What `check_pairs` has found."""

    survey: Survey
    sheet: Array | None  # a contact sheet, if any pair was to be drawn and could be read
    broken: Sequence[Exception]  # one for each pair that cannot be read


def spread(pairs: Sequence[FlowPair], count: int) -> list[FlowPair]:
    """Return `count` pairs (or all, when there are fewer) at even distances."""
    step = max(1.0, len(pairs) / count)
    return [pairs[int(index * step)] for index in range(min(count, len(pairs)))]


def check_pairs(pairs: Iterable[FlowPair], drawn: Collection[FlowPair]) -> Check:
    """Read pairs one by one; those among `drawn` are put on the sheet."""
    survey, broken, rows = Survey(), [], list[tuple[str, list[Array]]]()
    for pair in pairs:
        try:
            sample = survey.add(pair)
        except (InputError, OSError) as error:
            broken.append(error)
            continue
        if pair in drawn:
            rows.append(_labelled_row(pair.name, sample))
    return Check(survey, _sheet(rows) if rows else None, broken)


def write_pairs(
    renderer: "Renderer", folder: Path, numbers: Iterable[int]
) -> "tuple[MotionStatistics, Array]":
    """Write pairs by their numbers; return the statistics of their motion, and a sheet."""
    from ..render import MotionStatistics

    statistics, rows = MotionStatistics(), list[tuple[str, list[Array]]]()
    for number in numbers:
        # one by one, so that a pair does not depend on how many there are
        rendered, name = renderer.render(1, number), f"scene_{number:04d}"
        statistics.add(rendered)
        sample = rendered.to_samples()[0]
        mask = _to_mask(rendered.occluded[0].cpu().numpy())
        # in the layout that the data set `pairs` reads
        images = {"_img1.png": sample.image1, "_img2.png": sample.image2, "_occ.png": mask}
        contents = {end: encode_image(end, image) for end, image in images.items()}
        contents["_flow.flo"] = encode_flow("_flow.flo", _known(sample.flow, sample.valid))
        write_files({folder / f"{name}{end}": content for end, content in contents.items()})
        if number < _ON_SHEET:
            rows.append(_labelled_row(name, sample))
    return statistics, _sheet(rows)


def write_clip(clip: "Clip | FluidClip", folder: Path, numbers: Iterable[int]) -> list[Path]:
    """Write frames, flow to the next one, masks and tracks; return the pictures and the tracks."""
    frames = clip.frames().permute(0, 2, 3, 1).cpu().numpy()
    written = []
    for number in numbers:
        name = folder / f"{number:03d}"
        contents = {name.with_suffix(".png"): encode_image("x.png", to_uint8(frames[number]))}
        if number + 1 < clip.num_frames:
            flow, hidden = clip.flow(number, number + 1), clip.occluded(number, number + 1)
            known = _known(flow.permute(1, 2, 0).cpu().numpy(), clip.valid(flow).cpu().numpy())
            mask = _to_mask(hidden.cpu().numpy())
            contents[name.with_suffix(".flo")] = encode_flow("x.flo", np.ascontiguousarray(known))
            contents[folder / f"{number:03d}_occ.png"] = encode_image("x.png", mask)
        write_files(contents)
        written.append(name.with_suffix(".png"))
    points, occluded = (part.cpu().numpy() for part in clip.tracks(_NUM_TRACKS))
    tracks, buffer = folder / "tracks.npz", BytesIO()
    np.savez_compressed(buffer, points=points, occluded=occluded)
    write_files({tracks: buffer.getvalue()})
    return [*written, tracks]


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

    @contextmanager
    def timed(stage: str) -> Iterator[None]:
        start = perf_counter()
        yield
        totals[stage] += perf_counter() - start

    def read(index: int) -> FlowSample:
        """Do what `FlowDataset` does, and time each stage."""
        with timed("reading"):
            sample = dataset.read(index)
        sparse, generator = dataset.pairs[index].sparse, np.random.default_rng()
        with timed("colour"):
            sample = augment_erase(sample, config, generator)
        with timed("geometry"):
            sample = augment_geometry(sample, config, generator, sparse=sparse)
        with timed("colour"):
            return augment_color(sample, config, generator, sparse=sparse)

    dataset = FlowDataset(pairs, config, seed=0)
    end, batches = perf_counter() + seconds, 0
    for keys in batch_keys(dataset, batch_size):
        samples = [read(index) for _, index in keys]
        with timed("collating"):
            collate(samples)
        batches += 1
        if perf_counter() >= end:
            break
    return {stage: 1000 * total / (batches * batch_size) for stage, total in totals.items()}
