"""A shaky clip becomes a steady one: follow points, find the camera's path, warp each frame.

Two passes over the clip, in constant memory. The path is saved after the first.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import cv2
import numpy as np

from ..errors import InputError, check_name
from ..files import (
    AS_USUAL,
    Array,
    Plate,
    Reading,
    check_folder,
    check_writable,
    encode_plate,
    to_uint8,
    write_files,
)
from ..ops import Size
from ..video import Checkpoint, Film, Frame, Selection, State, ahead, plan_film, still_suffix
from ..video.movies import Movie
from ..video.writers import FolderWriter
from .camera import INTERVALS, MOTIONS, CameraMotion, CameraPath, Steady, calm_path
from .tracks import Reference, grid

if TYPE_CHECKING:
    from ..estimation.estimator import FlowEstimator
    from .tracker import Tracker

BORDERS = ("crop", "fill", "black")
"""Where a calm camera sees more than a frame: not shown, from frames before, or black."""
SEGMENT = 16
"""Frames after which points are seeded again; a camera that is held still keeps them longer."""
_POINTS = 400  # in a frame, about
_TOLERANCE = 0.003  # of the diagonal: how far points that stand still may be from the motion
_VISIBLE = 0.5  # of the points: if fewer are left, they are seeded again
_FEATHER = 4.0  # px over which a frame is blended with the frames before


@dataclass(frozen=True)
class Steadying:
    """How a clip is made steady."""

    motion: str = "similarity"
    """What the camera can do, one of `MOTIONS`."""
    smooth: float = 1.0
    """Seconds: the standard deviation of the Gaussian that smooths the path."""
    lock: bool = False
    """Hold the camera still at the first frame of each scene instead."""
    border: str = "crop"
    """One of `BORDERS`."""
    scale: float = 1.0
    """Follow points in frames that are scaled by this."""

    def __post_init__(self) -> None:
        check_name("`motion`", self.motion, MOTIONS)
        check_name("`border`", self.border, BORDERS)
        if not 0 < self.smooth <= 60:
            raise InputError(f"`smooth` must be above 0 and at most 60 s, got {self.smooth:g}")
        if not 0 < self.scale <= 1:
            raise InputError(f"`scale` must be above 0 and at most 1, got {self.scale:g}")


Begin: TypeAlias = "Callable[[Reference], Tracker]"
"""Makes a tracker of the points of one frame."""
Watch: TypeAlias = Callable[[str, int], bool]
"""Gets what is done and in how many frames; returns whether to continue."""


def trackers(estimator: "FlowEstimator") -> Begin:
    """Return what makes the trackers of a run; they share what is prepared for one size."""
    from ..estimation.estimator import FlowSequence
    from .tracker import Tracker

    sequence = FlowSequence(estimator, backward=True)
    return lambda reference: Tracker(estimator, [reference], intervals=INTERVALS, sequence=sequence)


# --- first pass: the path -------------------------------------------------------------------------


class Follower:
    """Follows a grid of points from frame to frame, and notes the steps of the camera."""

    def __init__(self, begin: Begin, how: Steadying) -> None:
        self._begin, self._how = begin, how
        self._tracker: Tracker | None = None
        self._since = 0  # frames, that the points are followed
        self._camera: CameraMotion | None = None
        self._rows: list[tuple[int, Array, int, bool]] = []
        self.size: Size = (0, 0)

    def add(self, image: Array, number: int) -> None:
        """Take the next frame, (H, W, 3) of any depth."""
        small = Selection(scale=self._how.scale).resized(to_uint8(image))
        if self._camera is None:
            self.size = (image.shape[0], image.shape[1])
            self._camera = self._new_camera()
            self._note(number, begins=True)
            return self._seed(small, number)
        assert self._tracker is not None
        positions = self._tracker.push(small, number)[0]
        if self._tracker.cut or positions is None:
            self._camera.begin_scene()
            self._note(number, begins=True)
            return self._seed(small, number)
        visible, error = positions.visible.cpu().numpy(), positions.error.cpu().numpy()
        points = self._from_middle(positions.points.cpu().numpy(), small)
        low = 2 * self._camera.tolerance / self._ratio(small).max()  # px of the small frame
        usable = visible & (error <= low) & np.isfinite(points).all(1)
        step = self._camera.add(points, usable)
        self._note(number, step.matrix, step.points)
        self._since += 1
        worn = self._since >= SEGMENT and not self._how.lock
        if worn or visible.mean() < _VISIBLE:
            self._seed(small, number)

    def path(self) -> CameraPath:
        """The path through all frames so far."""
        if len(self._rows) < 2:
            raise InputError(_ONE_FRAME)
        numbers, steps, points, begins = (
            np.array(column) for column in zip(*self._rows, strict=True)
        )
        return CameraPath(self.size, numbers, steps, points, begins)

    def _new_camera(self) -> CameraMotion:
        how = self._how
        tolerance = max(1 / how.scale, _TOLERANCE * float(np.hypot(*self.size)))
        return CameraMotion(self.size, how.motion, tolerance, hold=how.lock)

    def _note(
        self, number: int, step: Array | None = None, points: int = 0, *, begins: bool = False
    ) -> None:
        self._rows.append((number, np.eye(3) if step is None else step, points, begins))

    def _seed(self, small: Array, number: int) -> None:
        """Follow a new grid of points from this frame on."""
        assert self._camera is not None
        height, width = small.shape[:2]
        spacing = max(1, min(height, width, round((height * width / _POINTS) ** 0.5)))
        points = grid((height, width), spacing)
        self._tracker, self._since = self._begin(Reference(number, points)), 0
        self._tracker.push(small, number)
        self._camera.seed(self._from_middle(points, small))

    def _ratio(self, small: Array) -> Array:
        """(2,) px of a frame in a px of the small one."""
        return np.array(self.size[::-1]) / np.array(small.shape[1::-1])

    def _from_middle(self, points: Array, small: Array) -> Array:
        """(P, 2) positions in a small frame -> px of the frame, from its middle."""
        middle = (np.array(small.shape[1::-1]) - 1) / 2
        return np.asarray((points.astype(np.float64) - middle) * self._ratio(small))


_ONE_FRAME = "a clip must have at least two frames to become steady; this one has fewer"


def follow(
    frames: Iterable[Frame], begin: Begin, how: Steadying, watch: Watch = lambda what, done: True
) -> CameraPath | None:
    """The camera's path through the frames; None if `watch` stopped it."""
    follower = Follower(begin, how)
    for done, frame in enumerate(frames, 1):
        if frame.image is not None:
            follower.add(frame.image, frame.number)
        if not watch("follow", done):
            return None
    return follower.path()


# --- second pass: the pictures --------------------------------------------------------------------


class Warper:
    """Warps the frames of a clip one by one, and fills what they do not show."""

    def __init__(self, path: CameraPath, found: Steady, border: str) -> None:
        self._path, self._found, self._border = path, found, border
        self._place = 0
        self._last: tuple[Array, Array] | None = None  # the picture before, and what it shows

    def __call__(self, picture: Array) -> Array:
        """The next frame, (H, W, C) of any depth, as the calm camera sees it."""
        warp = self._found.warps[self._place]
        if self._border != "fill":
            made = warped(picture, warp, black=self._border == "black")
        else:
            made = self._filled(picture, warp)
        self._place += 1
        return made

    def _filled(self, picture: Array, warp: Array) -> Array:
        """Take what the frame does not show from the picture before, or from its own border."""
        now = warped(picture, warp, black=False)
        inside = shown(np.ones(picture.shape[:2], np.uint8), warp)
        if self._last is not None and not self._path.begins[self._place]:
            back = self._way_back(warp)
            before, there = warped(self._last[0], back, black=False), shown(self._last[1], back)
            depth = cv2.distanceTransform(np.pad(inside, 1), cv2.DIST_L2, 3)[1:-1, 1:-1]  # px
            weight = np.where(there > 0, (depth / _FEATHER).clip(0, 1), np.float32(1))[..., None]
            mixed = weight * now + (1 - weight) * before
            now = (np.rint(mixed) if now.dtype.kind == "u" else mixed).astype(now.dtype)
            inside = np.maximum(inside, there)
        self._last = (now, inside)
        return now

    def _way_back(self, warp: Array) -> Array:
        """(3, 3): from pixels of this picture to pixels of the picture before."""
        middle = np.eye(3)
        middle[:2, 2] = (np.array(self._path.size[::-1]) - 1) / 2
        step = middle @ self._path.steps[self._place] @ np.linalg.inv(middle)
        before = self._found.warps[self._place - 1]
        return np.asarray(np.linalg.inv(before) @ np.linalg.inv(step) @ warp)


def warped(picture: Array, warp: Array, *, black: bool) -> Array:
    """A picture whose pixels are fetched through `warp`; outside black, or as at the border."""
    size = (picture.shape[1], picture.shape[0])
    whole = picture.dtype.kind == "u"
    how = cv2.INTER_LANCZOS4 if whole else cv2.INTER_CUBIC
    border = cv2.BORDER_CONSTANT if black else cv2.BORDER_REPLICATE
    flags = how | cv2.WARP_INVERSE_MAP
    made = np.asarray(cv2.warpPerspective(picture, warp, size, flags=flags, borderMode=border))
    # light is not cut off at 1, but there must be no ringing below black or above the brightest
    return made if whole else made.clip(min(0, picture.min()), picture.max())


def shown(mask: Array, warp: Array) -> Array:
    """(H, W) uint8: 1 where `warped` shows what the (H, W) mask has, 0 outside."""
    size, flags = (mask.shape[1], mask.shape[0]), cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP
    return np.asarray(cv2.warpPerspective(mask, warp, size, flags=flags))


# --- the job --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A clip to make steady, all of it checked."""

    film: Film
    selection: Selection
    output: Path
    how: Steadying
    table: Path | None = None
    """A .csv file for the path."""

    @property
    def outputs(self) -> list[Path]:
        """The files or folders to write."""
        return [self.output, *([self.table] if self.table else [])]

    @property
    def frames(self) -> list[Path]:
        """The files of the selected frames, if each is a file."""
        return [*self.selection.chosen(self.film.source.files)]

    @property
    def total(self) -> int | None:
        """How many frames there are, if known."""
        flows = self.selection.expected_flows(self.film.source)
        return None if flows is None else flows + 1

    @property
    def sigma(self) -> float:
        """Frames over which the path is smoothed."""
        return self.how.smooth * (self.film.source.rate or self.film.rate)


def plan(
    clip: str | Path,
    output: str | Path,
    how: Steadying,
    *,
    selection: Selection | None = None,
    table: Path | None = None,
    fps: float | None = None,
    encoder: str | None = None,
    reading: Reading = AS_USUAL,
) -> Job:
    """Open a clip; refuse what cannot be made steady or written."""
    text, output, selection = str(clip), Path(output), selection or Selection()
    (check_writable if output.suffix and not output.is_dir() else check_folder)(output)
    if table is not None:
        check_writable(table)
        if table.suffix.lower() != ".csv":
            raise InputError(f"{table}: the path must be a .csv file")
    film = plan_film(text, output, fps, encoder, reading, start=selection.start)
    job = Job(film, selection, output, how, table)
    _check_inputs(job, Path(text))
    if job.total == 1:
        with closing(selection.frames(job.film.source)) as frames:
            next(frames, None)  # says it if the start is past the end
        raise InputError(_ONE_FRAME)
    return job


def _check_inputs(job: Job, clip: Path) -> None:
    """Refuse to write over the clip or its frames, or two frames to one file."""
    names: dict[str, Path] = {}
    for frame in job.frames:
        if names.setdefault(frame.stem, frame) is not frame:
            raise InputError(
                f"{names[frame.stem]} and {frame} would be one file; select frames by a pattern "
                "such as 'frames/*.png', or rename one"
            )
    for output in filter(Path.exists, job.outputs):
        for given in {clip, *(frame.parent for frame in job.frames)}:
            if given.exists() and output.samefile(given):
                raise InputError(f"{output} is the input as well; write elsewhere")


def run(
    job: Job, begin: Begin, checkpoint: Checkpoint, watch: Watch = lambda what, done: True
) -> dict[str, Any] | None:
    """Find the path, unless an earlier run has saved it, and write; None if `watch` stopped it."""
    with checkpoint:
        path = _saved_path(job, begin, checkpoint, watch)
        if path is None:
            return None
        cropped = job.how.border == "crop"
        found = calm_path(path, job.sigma, lock=job.how.lock, crop=cropped)
        warper = Warper(path, found, job.how.border)
        if not _write(job, path, warper, checkpoint.folder, watch):
            return None
        if job.table is not None:
            write_files({job.table: path.table().encode()})
        checkpoint.finish(job.outputs)
        return {"written": job.outputs, **summary(job, path, found), **job.film.notes}


def _saved_path(job: Job, begin: Begin, checkpoint: Checkpoint, watch: Watch) -> CameraPath | None:
    saved = checkpoint.folder / "path.npz"
    if checkpoint.done:
        return CameraPath.read(saved)
    path = None
    try:
        checkpoint.save(State())
        with closing(ahead(job.selection.frames(job.film.source))) as frames:
            path = follow(frames, begin, job.how, watch)
    finally:
        if path is None:  # nothing to resume
            checkpoint.remove()
    if path is not None:
        write_files({saved: path.encode()})
        checkpoint.save(State(done=len(path.numbers)))
    return path


def _write(job: Job, path: CameraPath, warper: Warper, parts: Path, watch: Watch) -> bool:
    """Write all pictures; return false if `watch` stopped it."""
    writer = _Images(job) if job.film.coding is None else _Video(job, parts)
    first, known = int(path.numbers[0]), set(path.numbers.tolist())
    writer.resume(0)
    with ExitStack() as stack:
        stack.callback(writer.stop)
        frames = stack.enter_context(closing(ahead(job.selection.frames(job.film.source))))
        for done, frame in enumerate(frames, 1):
            if frame.number in known:
                writer.add_frame(frame, warper, frame.number - first)
            if not watch("write", done):
                return False
        writer.finish()
    return True


class _Video(Movie):
    """The pictures as a video."""

    def __init__(self, job: Job, parts: Path) -> None:
        film = job.film
        super().__init__(job.output, parts, film.rate, film.coding, film.sound)

    def add_frame(self, frame: Frame, warper: Warper, number: int) -> None:
        assert frame.image is not None
        self.add(warper(frame.image), number)
        self.done += 1
        if self.done % self.piece == 0:
            self.commit()

    def finish(self) -> Path:
        self.commit()
        return super().finish()


class _Images(FolderWriter):
    """The pictures as files, named after the frames; alpha and depth are kept."""

    def __init__(self, job: Job) -> None:
        self._suffix = still_suffix(job.film.source)
        super().__init__(job.output, f".*{self._suffix}.*")

    def add_frame(self, frame: Frame, warper: Warper, number: int) -> None:
        assert frame.image is not None
        self.make_folder()
        plate = frame.plate or Plate(frame.image)
        path = self.folder / f"{frame.name}{self._suffix}"
        write_files({path: encode_plate(path, plate.with_values(warper(plate.values)))})


def summary(job: Job, path: CameraPath, found: Steady) -> dict[str, Any]:
    """What to print of a finished run."""
    values: dict[str, Any] = {
        "frames": len(path.numbers),
        "scenes": path.num_scenes,
        "frames_of_unknown_motion": path.num_unknown,
    }
    if job.how.border == "crop":
        values["kept_share"] = found.share
    if found.reduced:
        rate = job.sigma / job.how.smooth

        def said(start: int, sigma: float) -> str:
            return f"{sigma / rate:.2g} s from frame {start}"

        wanted = "a still camera" if job.how.lock else f"{job.how.smooth:g} s"
        some = ", ".join(starmap(said, [*found.reduced.items()][:5]))
        more = " …" if len(found.reduced) > 5 else ""
        values["smoothing_reduced"] = f"{some}{more}, instead of {wanted}, to fit the crop"
    return values


def stabilize(
    shaky: str | Path,
    steady: str | Path,
    how: Steadying | None = None,
    *,
    estimator: "FlowEstimator | None" = None,
    restart: bool = False,
) -> dict[str, Any]:
    """Make a shaky clip steady; return what there is to say of it.

    >>> stabilize("shaky.mp4", "steady.mp4", Steadying(smooth=2.0))

    A stopped run whose first pass was done is resumed, unless `restart`. The default `estimator`
    is `dicl_flow.load()`.
    """
    how = how or Steadying()
    job = plan(shaky, steady, how)
    if estimator is None:
        from ..estimation.estimator import load

        estimator = load()
    record = {"input": job.film.source.stamp, "output": job.output.resolve(), **asdict(how)}
    checkpoint = Checkpoint(job.output, record, frames=job.frames, restart=restart)
    done = run(job, trackers(estimator), checkpoint)
    assert done is not None  # nothing stops it
    return done
