"""Follows points through frames: `Tracker` as they come, `track` through a clip, both ways."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError
from ..estimation.confidence import find_occlusion
from ..estimation.estimator import FlowEstimator, FlowSequence, load
from ..estimation.inputs import Image, image_batch
from ..estimation.result import unpack
from ..files import Array
from ..ops import Size
from ..video import Shot
from ..video.flows import CUT, small_grey, small_size, small_unexplained
from ..video.frames import Frame, Moment, Selection, Source, first_size, open_source
from .chains import choose, extend
from .intervals import INTERVALS, RecentFrames, check_intervals
from .reliability import TrackCalibration, packaged_calibration
from .tracks import Positions, Reference, Tracks, check_points, order_of, references_of

RETURNING = 0.4
"""Share of pixels that the backward flow leads back: 0 to 0.2 at cuts, 0.4 to 1 within scenes."""
PATIENCE = 16
"""Frames after a cut in which a scene that returns is known again: something that fills the frame
for a moment looks like a cut."""
_POINTS_AT_ONCE = 1 << 20
_BYTES_AT_ONCE = 512 << 20  # of frames that are read again, to be had in reverse order
_FIELDS = Positions._fields


@dataclass
class _Following:
    """The positions of a reference's points in the last frames, by number."""

    reference: Reference
    positions: dict[int, Positions] = field(default_factory=dict)
    lost: int | None = None
    """The frame in which its scene had gone; its points have no positions until it returns."""
    ended: bool = False

    @property
    def active(self) -> bool:
        return bool(self.positions) and not self.ended

    def begin(self, device: torch.device) -> None:
        points = torch.from_numpy(np.array(self.reference.points, np.float32)).to(device)
        none = torch.zeros_like(points[:, 0])
        visible, interval = torch.ones_like(none, dtype=torch.bool), none.to(torch.int16)
        self.positions[self.reference.frame] = Positions(points, none, visible, interval)

    def end(self) -> None:
        self.ended = self.ended or bool(self.positions)
        self.positions.clear()

    def forget(self, kept: Iterable[int]) -> None:
        """Forget the positions in frames from which no flow starts any more."""
        if self.active:
            numbers = set(kept)
            self.positions = {n: found for n, found in self.positions.items() if n in numbers}
            self.ended = not self.positions


class Tracker:
    """Follows points through frames that come one by one; memory does not grow with them.

    >>> tracker = Tracker(dicl_flow.load(), [Reference(0, points)])
    >>> for frame in frames:
    ...     (positions,) = tracker.push(frame)

    Flows lead to each frame from those `intervals` before it and, if `direct`, from the
    references: so points are found again after they were hidden. For each point the chain of
    flows with the lowest expected error counts, of those on which it is visible. A cut, where a
    new scene begins, ends the tracks of earlier references, unless their scene returns within
    `PATIENCE` frames: until then there are no positions. `sequence` is that of another
    tracker of the same estimator, for frames of the same size: on a GPU it has been prepared.

    It keeps as many frames, prepared, as the longest interval spans, and the references; and of
    each point 15 bytes for each of these frames. Every pixel of 3840x2160 takes 4 GB.
    """

    cut: bool = False
    """Whether the frame pushed last begins a new scene."""

    def __init__(
        self,
        estimator: FlowEstimator,
        references: Sequence[Reference],
        *,
        intervals: Sequence[int] = INTERVALS,
        direct: bool = True,
        calibration: TrackCalibration | None = None,
        sequence: FlowSequence | None = None,
    ) -> None:
        self.intervals, self.direct = check_intervals(intervals, direct=direct), direct
        self.calibration = calibration or packaged_calibration()
        self.sequence = sequence or FlowSequence(estimator, backward=True)
        self._recent = RecentFrames(self.sequence, self.intervals)
        self._following = [_Following(_checked(reference)) for reference in references]
        self._device = estimator.device
        self._grey: Array | None = None  # the latest frame, small: to find cuts
        self._step = 0  # 1: numbers rise, -1: they fall; 0: not known yet

    @torch.inference_mode()
    def push(self, frame: Image, number: int | None = None) -> list[Positions | None]:
        """The next frame -> the positions of each reference's points in it, on the device.

        None stands for a reference that has not begun yet, or whose scene has gone. Frames are
        counted from 0, or have a `number`; numbers may fall instead, and leave out lost frames.
        """
        number = self._next() if number is None else number
        step, image = self._find_step(number), to_array(frame)
        if self._recent.latest is None:
            check_points([f.reference for f in self._following], _size(image))
        prepared, grey = self._recent.prepare(image), small_grey(image)
        flows = self._recent.flows(prepared, self._starts(number))
        self._step, self.cut = step, self._is_cut(flows, grey, _size(image))
        for following in self._following:
            if following.reference.frame == number:
                following.begin(self._device)
            elif following.active:
                self._go_on(following, number, flows)
        self._keep(number, prepared, grey)
        return [following.positions.get(number) for following in self._following]

    @property
    def ended(self) -> bool:
        """Whether no reference can have positions any more."""
        return all(following.ended for following in self._following)

    def needs(self) -> list[int]:
        """The numbers of the frames that `restore` needs for the present `state`."""
        return self._recent.numbers

    def state(self) -> dict[str, Array]:
        """All that `restore` needs to go on from here, except the frames that `needs` names."""
        state = {
            "frames": np.array(self.needs(), np.int64),
            "step": np.array(self._step),
            "ended": np.array([following.ended for following in self._following]),
            "lost": np.array([-1 if f.lost is None else f.lost for f in self._following]),
        }
        for place, following in enumerate(self._following):
            found = following.positions
            state[f"numbers{place}"] = np.array(list(found), np.int64)
            for name, parts in zip(_FIELDS, zip(*found.values(), strict=True), strict=False):
                state[f"{name}{place}"] = torch.stack(parts).cpu().numpy()
        return state

    @torch.inference_mode()
    def restore(self, state: Mapping[str, Array], frames: Iterable[tuple[int, Image]]) -> None:
        """Go on where a tracker of the same references was when it gave its `state`."""
        if len(state["ended"]) != len(self._following):
            raise InputError(
                f"the state is that of {len(state['ended'])} references, and this tracker has "
                f"{len(self._following)}"
            )
        images = dict(frames)
        missing = set(state["frames"].tolist()) - images.keys()
        if missing:
            raise InputError(f"to go on, the frames {sorted(missing)} are needed")
        self._step = int(state["step"])
        self._recent.clear()
        self._recent.keep_references(state["frames"].tolist())
        for number in state["frames"].tolist():
            image = to_array(images[number])
            self._recent.add(number, self._recent.prepare(image))
            self._grey = small_grey(image)
        for place, following in enumerate(self._following):
            following.ended = bool(state["ended"][place])
            lost = int(state["lost"][place])
            following.lost = None if lost < 0 else lost
            following.positions = _stored_positions(state, place, self._device)
        self._keep_references()

    def _next(self) -> int:
        latest = self._recent.latest
        return 0 if latest is None else latest + (self._step or 1)

    def _find_step(self, number: int) -> int:
        """Whether numbers rise or fall; refuse one that does neither, and references left out."""
        latest = self._recent.latest
        if latest is None:
            return 0
        step = 1 if number > latest else -1
        if number == latest or self._step not in (0, step):
            raise InputError(f"frame {number} cannot follow frame {latest}: they must be in order")
        for following in self._following:
            begins = following.reference.frame
            if not (following.active or following.ended) and (number - begins) * step > 0:
                raise InputError(
                    f"frame {begins} has points to follow, but frame {number} came without it"
                )
        return step

    def _starts(self, number: int) -> list[int]:
        """From which frames flows to this one are needed, each once."""
        latest = self._recent.latest
        starts = [] if latest is None else [latest]  # shows a cut
        around = self._recent.starts(number)
        for following in self._following:
            if following.active:
                starts += self._starts_of(following, around)
        return sorted(set(starts))

    def _starts_of(self, following: _Following, around: Iterable[int]) -> list[int]:
        direct = [following.reference.frame] if self.direct else []
        return list(dict.fromkeys(n for n in (*around, *direct) if n in following.positions))

    def _go_on(self, following: _Following, number: int, flows: Mapping[int, Tensor]) -> None:
        """Find the positions in a frame, or wait for a scene that has gone."""
        starts = self._starts_of(following, self._recent.starts(number))
        if self.cut or following.lost is not None:
            starts = [start for start in starts if returning(flows[start]) >= RETURNING]
        if starts:
            following.lost = None
            following.positions[number] = self._follow(following, number, starts, flows)
        elif following.lost is None:
            following.lost = number
        elif abs(number - following.lost) >= PATIENCE:
            following.end()

    def _follow(
        self, following: _Following, number: int, starts: list[int], flows: Mapping[int, Tensor]
    ) -> Positions:
        """The positions in a frame, found in parts of the points: every pixel may be one."""
        parts = []
        for begin in range(0, max(1, len(following.reference.points)), _POINTS_AT_ONCE):
            some = slice(begin, begin + _POINTS_AT_ONCE)
            candidates = [
                extend(
                    Positions(*(part[some] for part in following.positions[start])),
                    flows[start],
                    abs(number - start),
                    self.calibration,
                )
                for start in starts
            ]
            parts.append(choose(candidates))
        return Positions(*map(torch.cat, zip(*parts, strict=True)))

    def _is_cut(self, flows: Mapping[int, Tensor], grey: Array, size: Size) -> bool:
        """Judged as videos are, by the flow from the latest frame; and few pixels must return.

        A sudden light or something that passes near the camera changes the picture as well.
        """
        if self._recent.latest is None or self._grey is None:
            return False
        packed = flows[self._recent.latest]
        small = F.interpolate(unpack(packed)[0].flow, small_size(*size), mode="area")
        vectors = small[0].permute(1, 2, 0).cpu().numpy()
        if small_unexplained(self._grey, grey, vectors, size) <= CUT:
            return False
        return returning(packed) < RETURNING

    def _keep(self, number: int, prepared: Tensor, grey: Array) -> None:
        self._grey = grey
        self._keep_references()
        self._recent.add(number, prepared)
        for following in self._following:
            following.forget(self._recent.numbers)

    def _keep_references(self) -> None:
        active = [f.reference.frame for f in self._following if f.active]
        self._recent.keep_references(active if self.direct else ())


def returning(packed: Tensor) -> float:
    """The share of pixels that the backward flow leads back, of an estimate of both ways."""
    forward, backward = (estimate.flow for estimate in unpack(packed))
    return 1 - float(find_occlusion(forward, backward).float().mean())


def _stored_positions(
    state: Mapping[str, Array], place: int, device: torch.device
) -> dict[int, Positions]:
    """The positions of a reference in a `Tracker.state`, by the number of the frame."""
    numbers = state[f"numbers{place}"].tolist()
    parts = [torch.from_numpy(state[f"{name}{place}"]) for name in _FIELDS] if numbers else []
    return {
        number: Positions(*(part[row].to(device) for part in parts))
        for row, number in enumerate(numbers)
    }


def _checked(reference: Reference) -> Reference:
    points = reference.points
    if points.ndim != 2 or points.shape[1] != 2 or not len(points):
        raise InputError(f"the points of a reference must be (P, 2): x, y; got {points.shape}")
    if not np.isfinite(points).all():
        raise InputError(f"a point of frame {reference.frame} is not a number")
    if reference.frame < 0:
        raise InputError(f"frames are counted from 0; got a reference at {reference.frame}")
    return reference


def to_array(image: Image) -> Array:
    """(H, W, 3): uint8 as it is, all else as float32 in [0, 1]."""
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,):
        return image
    batch, is_batch = image_batch(image)
    if is_batch:
        raise InputError("a tracker takes one frame at a time, got a batch")
    return batch[0].permute(1, 2, 0).contiguous().numpy()


def _size(image: Array) -> Size:
    return image.shape[0], image.shape[1]


def track(
    frames: str | Path | Sequence[Image],
    points: Array | Sequence[Sequence[float]],
    *,
    estimator: FlowEstimator | None = None,
    backward: bool = True,
    intervals: Sequence[int] = INTERVALS,
) -> Tracks:
    """Find where points of a clip are in all of its frames.

    >>> tracks = dicl_flow.track("clip.mp4", [[0, 120, 80], [24, 300, 200]])

    `frames` is a video, a folder of images, a pattern such as "shot_*.png", or a sequence of
    images. `points` is (N, 3): frame, x, y; or (N, 2): x, y in frame 0. Positions are in px, with
    the centre of the first pixel at 0, 0. With `backward` a second pass over the clip follows the
    points to the frames before their own; without, these are NaN. The default `estimator` is
    `dicl_flow.load()`.
    """
    queries = _to_queries(points)
    check_intervals(intervals, direct=True)
    source = _open(str(frames)) if isinstance(frames, str | Path) else _from_images(frames)
    times = [shot.time for shot in source.shots()]
    _check_clip(len(times), queries)
    clip = _Clip(source, times, queries, estimator or load(), tuple(intervals))
    clip.follow(_forward(source, clip.first), 1)
    if backward and clip.last:
        clip.follow(reversed_frames(source, clip.last), -1)
    return clip.tracks()


class _Clip:
    """The tracks of a clip while they are found."""

    def __init__(
        self,
        source: Source,
        times: Sequence[float | None],
        queries: Array,
        estimator: FlowEstimator,
        intervals: tuple[int, ...],
    ) -> None:
        self.references, self.queries = references_of(queries), queries
        self.first, self.last = self.references[0].frame, self.references[-1].frame
        self._estimator, self._intervals = estimator, intervals
        self._sequence = FlowSequence(estimator, backward=True)
        shape = (len(queries), len(times))
        self._points = np.full((*shape, 2), np.nan, np.float32)
        self._error = np.full(shape, np.nan, np.float32)
        self._visible, self._interval = np.zeros(shape, bool), np.zeros(shape, np.int16)
        self._times = np.array([np.nan if time is None else time for time in times])
        self._cuts, self._size = set[int](), (0, 0)

    def follow(self, frames: Iterable[Frame], step: int) -> None:
        """Track through frames whose numbers rise (1) or fall (-1)."""
        tracker = Tracker(
            self._estimator,
            self.references,
            intervals=self._intervals,
            sequence=self._sequence,
        )
        latest = 0
        for frame in frames:
            if frame.image is None:
                continue  # a lost frame
            found = tracker.push(frame.image, frame.number)
            if tracker.cut:
                self._cuts.add(frame.number if step > 0 else latest)
            self._store(frame.number, found, step)
            self._size, latest = _size(frame.image), frame.number

    def _store(self, number: int, found: Sequence[Positions | None], step: int) -> None:
        begin = 0
        for reference, positions in zip(self.references, found, strict=True):
            rows = slice(begin, begin + len(reference.points))
            begin = rows.stop
            if positions is not None:
                points, error, visible, interval = (part.cpu().numpy() for part in positions)
                self._points[rows, number], self._error[rows, number] = points, error
                self._visible[rows, number] = visible
                self._interval[rows, number] = step * interval

    def tracks(self) -> Tracks:
        """All of them, in the order of the queries."""
        order = order_of(self.queries)
        return Tracks(
            self._points[order],
            self._visible[order],
            self._error[order],
            self._interval[order],
            self.queries,
            self._times,
            np.array(sorted(self._cuts), np.int64),
            self._size,
        )


def _to_queries(points: Array | Sequence[Sequence[float]]) -> Array:
    """(N, 2) or (N, 3) -> (N, 3) float32."""
    try:
        queries = np.asarray(points, np.float32)
    except (TypeError, ValueError):
        raise InputError("`points` must be numbers: (N, 3), frame, x, y; or (N, 2), x, y") from None
    if queries.ndim != 2 or queries.shape[1] not in (2, 3) or not len(queries):
        raise InputError(
            f"`points` must be (N, 3): frame, x, y; or (N, 2): x, y; got the shape {queries.shape}"
        )
    if queries.shape[1] == 2:
        queries = np.pad(queries, ((0, 0), (1, 0)))
    if not np.isfinite(queries).all():
        raise InputError("`points` must be finite numbers")
    frames = queries[:, 0]
    wrong = (frames < 0) | (frames != np.floor(frames))
    if wrong.any():
        raise InputError(f"frames are whole numbers, counted from 0; got {frames[wrong][0]:g}")
    return queries


def _check_clip(count: int, queries: Array) -> None:
    if count < 2:
        raise InputError(f"to track points, a clip must have at least 2 frames; it has {count}")
    last = int(queries[:, 0].max())
    if last >= count:
        raise InputError(f"no frame {last}: the clip has {count} frames, 0 to {count - 1}")


def _open(text: str) -> Source:
    source = open_source(text)
    if source.live:
        raise InputError(f"{text} has no end; use `Tracker`, which takes frames as they come")
    if source.scenes:
        raise InputError(f"{text} is a folder of pairs, not of the frames of a clip")
    return source


def _from_images(images: Sequence[Image]) -> Source:
    """Images in memory, or their paths, as a source."""
    if not (hasattr(images, "__len__") and hasattr(images, "__getitem__")):
        raise InputError(
            "`frames` must be a path or a sequence of images; `Tracker` takes frames as they come"
        )

    def shots() -> Iterator[Shot]:
        for number in range(len(images)):
            yield Shot(str(number), None, partial(lambda n: to_array(images[n]), number))

    return Source(shots, {}, count=len(images))


def _forward(source: Source, first: int) -> Iterator[Frame]:
    """The frames from number `first` on; a lost one is a gap."""
    return Selection(start=Moment(first, in_seconds=False), on_error="skip").frames(source)


def reversed_frames(source: Source, last: int, at_once: int | None = None) -> Iterator[Frame]:
    """Yield the frames from number `last` down to 0, `at_once` of them in memory.

    A video is decoded from its start for each such part; by default they have 512 MiB.
    """
    end = last + 1
    while end > 0:
        start = max(0, end - (at_once or _frames_at_once(source)))
        part = Selection(Moment(start, False), Moment(end, False), on_error="skip")
        yield from reversed(list(part.frames(source)))
        end = start


def _frames_at_once(source: Source) -> int:
    height, width = first_size(source)
    return max(1, _BYTES_AT_ONCE // (3 * height * width))
