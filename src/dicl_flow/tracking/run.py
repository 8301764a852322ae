"""Track the points of a clip, from the first frame or from where the last run stopped.

Three stages: forward in time, backward from the last reference to the first frame, and drawing.
`progress` says what is saved on the way.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ..errors import InputError
from ..files import Array
from ..video import Behind, Checkpoint, Frame, State, ahead
from .outputs import MapFolder, OverlayVideo, map_folders
from .progress import BACKWARD, DRAWING, FORWARD, STAGES, Memory, Progress, Trail
from .task import Clip, Task
from .tracks import Positions, Reference, Tracks, write_tracks

if TYPE_CHECKING:
    from .tracker import Tracker

_CHUNK = 256 << 20  # bytes of frames in memory that are read to be used in reverse


class NoReferenceError(InputError):
    """A frame with points to track is not there: the run cannot be resumed either."""


MakeTracker: TypeAlias = "Callable[[Sequence[Reference]], Tracker]"


@dataclass(frozen=True)
class TrackOutputs:
    """What to write: files of tracks, or a folder of ST maps; and a video."""

    files: Sequence[Path] = ()
    maps: Path | None = None
    video: Callable[[Path], OverlayVideo] | None = None
    """Makes the overlay, given a folder for its parts."""


# --- frames in both directions --------------------------------------------------------------------

Placed: TypeAlias = tuple[int, Frame]


def frames_on(clip: Clip, start: int) -> Generator[Placed, None, None]:
    """Yield the frames from a place on."""
    with closing(clip.selection.frames(clip.source, skip=start)) as frames:
        yield from enumerate(frames, start)


def frames_back(clip: Clip, start: int) -> Generator[Placed, None, None]:
    """Yield the frames from a place back to the first; read in chunks, which fit in memory."""
    height, width = clip.used
    length = max(1, _CHUNK // (3 * height * width))
    for end in range(start + 1, 0, -length):
        first = max(0, end - length)
        with closing(frames_on(clip, first)) as frames:
            chunk = list(islice(frames, end - first))
        if len(chunk) < end - first:
            raise InputError("the clip has fewer frames now than when it was read forward")
        yield from reversed(chunk)


# --- the run --------------------------------------------------------------------------------------

OnProgress: TypeAlias = Callable[[int, int, int | None], None]


class Way(NamedTuple):
    """One way through a clip, forward in time or backward, and the tracker that goes it."""

    task: Task
    stage: int
    references: Sequence[Reference]
    tracker: "Tracker"
    progress: Progress
    behind: Behind
    """Writes what was found."""

    def frames(self, steps: int) -> Generator[Placed, None, None]:
        """Yield the frames after `steps` of them; read in another thread."""
        if self.stage == FORWARD:
            return ahead(frames_on(self.task.clip, steps))
        return ahead(frames_back(self.task.clip, self.task.last - steps))

    def steps_to(self, place: int) -> int:
        """How many frames come before a place."""
        return place if self.stage == FORWARD else self.task.last - place


class Run:
    """One run of a task; see `run`."""

    def __init__(
        self,
        task: Task,
        make_tracker: MakeTracker,
        outputs: TrackOutputs,
        checkpoint: Checkpoint,
        watch: Callable[[], bool],
        on_progress: OnProgress,
    ) -> None:
        self.task, self.outputs, self._checkpoint = task, outputs, checkpoint
        self._make_tracker, self._watch, self._on_progress = make_tracker, watch, on_progress
        self.trails = [Trail(checkpoint.folder / f"{name}.bin", task.count) for name in STAGES[:2]]
        self._memory = Memory(checkpoint.folder / "tracker")
        folders = map_folders(outputs.maps, task.numbers) if outputs.maps else []
        self._maps = [MapFolder(f, task.clip.used, task.clip.error_scale) for f in folders]
        if not checkpoint.done:
            checkpoint.save(State(memory=[{"stage": FORWARD, "steps": 0}]))

    @property
    def _at(self) -> tuple[int, int]:
        """The stage, and how many frames of it are saved."""
        saved = self._checkpoint.state.memory[0]
        return int(saved["stage"]), int(saved["steps"])

    def track(self) -> bool:
        """Do both directions; false if the run was stopped."""
        stage, steps = self._at
        for folder, reference in zip(self._maps, self.task.references, strict=False):
            folder.resume(max(0, steps - reference.frame) if stage == FORWARD else 1)
        if self._at[0] == FORWARD:
            if not self._follow(FORWARD):
                return False
            self._check_end()
            self._enter(BACKWARD)
        if self._at[0] == BACKWARD:
            if self.task.steps_back and not self._follow(BACKWARD):
                return False
            self._enter(DRAWING)
        return True

    def _enter(self, stage: int) -> None:
        """Begin a stage."""
        if stage == BACKWARD:
            self.trails[BACKWARD].resume(0)  # it stays empty if there is nothing to do
        memory: list[dict[str, float]] = [{"stage": stage, "steps": 0}]
        self._checkpoint.save(replace(self._checkpoint.state, memory=memory))

    def _check_end(self) -> None:
        """Refuse references after the end, if only reading has found it."""
        count, clip = self._at[1], self.task.clip
        if self.task.last >= count:
            last = clip.first + (count - 1) * clip.selection.stride
            raise NoReferenceError(
                f"a reference is frame {max(self.task.numbers)}, but the last frame is {last}"
            )

    def _follow(self, stage: int) -> bool:
        """Push frames to a tracker, and keep the positions; false if stopped."""
        progress = Progress(stage, self._checkpoint.state)
        self.trails[stage].resume(progress.steps)
        # backward, nothing comes before the first frame
        references = [r for r in self.task.references if r.frame or stage == FORWARD]
        tracker, goes_on = self._make_tracker(references), True
        with Behind() as behind:
            way = Way(self.task, stage, references, tracker, progress, behind)
            try:
                for place, frame in self._frames(way):
                    self._queue(way, place, frame, self._push(way, place, frame))
                    progress.count(frame)
                    self._on_progress(stage, progress.state.done, self.task.steps)
                    goes_on = self._watch()
                    if not goes_on:
                        break
                    if progress.is_due:
                        self._save(way)
            except InputError:  # of a frame: what was done before it is not lost
                self._save(way)
                raise
            self._save(way)
        return goes_on

    def _frames(self, way: Way) -> Iterator[Placed]:
        """Yield the frames to push, after the tracker was restored if a run is resumed."""
        state: dict[str, Array] = {}
        needs: list[int] = []
        steps = way.progress.steps
        if steps:
            state, needs = self._memory.load(way.progress.name)
        first = min([steps, *map(way.steps_to, needs)])
        with closing(way.frames(first)) as frames:
            again = [
                (place, frame.image)
                for place, frame in islice(frames, steps - first)
                if place in needs and frame.image is not None
            ]
            if needs:
                way.tracker.restore(state, again)
            del again  # the tracker has what it needs
            yield from frames

    def _push(self, way: Way, place: int, frame: Frame) -> dict[int, Positions]:
        """Return the positions of each reference's points, by the frame of the reference."""
        if frame.image is None:
            if any(reference.frame == place for reference in way.references):
                number, problem = frame.number, frame.problem
                raise NoReferenceError(
                    f"frame {number} has points to track, but cannot be read: {problem}"
                )
            return {}
        if way.stage == FORWARD and all(place < each.frame for each in way.references):
            return {}  # nothing to follow yet
        found = zip(way.references, way.tracker.push(frame.image, place), strict=True)
        return {each.frame: positions for each, positions in found if positions is not None}

    def _queue(self, way: Way, place: int, frame: Frame, found: dict[int, Positions]) -> None:
        """Queue the positions in a frame to be written."""
        on_host = {at: _on_host(positions) for at, positions in found.items()}
        for folder, reference in zip(self._maps, self.task.references, strict=False):
            is_new = way.stage == FORWARD or place < reference.frame
            if is_new and reference.frame in on_host:
                way.behind.do(partial(folder.save, frame.name, on_host[reference.frame]))
        trail = self.trails[way.stage]
        record = trail.blank(frame)
        record["cut"] = way.tracker.cut and frame.image is not None
        begin = 0
        for reference, kept in zip(self.task.references, self.task.kept, strict=True):
            rows = slice(begin, begin := begin + len(kept))
            if len(kept) and reference.frame in on_host:
                for name, values in on_host[reference.frame]._asdict().items():
                    record[name][rows] = values[kept]
        way.behind.do(partial(trail.add, record))

    def _save(self, way: Way) -> None:
        """Queue to save how far the run is, after all that was queued before."""
        progress = way.progress
        if not progress.new:
            return
        begin, state, name = perf_counter(), replace(progress.state), progress.name
        needs = way.tracker.needs()
        known = way.tracker.state() if needs else {}

        def save() -> None:
            self._memory.save(name, known, needs)
            self._checkpoint.save(state)
            self._memory.forget_others(name)

        way.behind.do(save)
        progress.saved(perf_counter() - begin)

    def tracks(self) -> Tracks:
        """The points that are kept, in px of the clip."""
        task, clip = self.task, self.task.clip
        forward, back = self.trails[FORWARD].read(), self.trails[BACKWARD].read()[::-1]
        parts = {name: _joined(task, forward, back, name) for name in Positions._fields}
        parts["points"] = clip.outward(parts["points"])
        parts["error"] *= np.float32(clip.error_scale)
        queries = np.column_stack([task.queries[:, 0], clip.outward(task.queries[:, 1:])])
        return Tracks(
            **parts,
            queries=queries.astype(np.float32),
            times=forward["time"].copy(),
            cuts=_cuts(forward, back),
            size=clip.size,
            first=clip.first,
            stride=clip.selection.stride,
        )

    def draw(self, overlay: OverlayVideo) -> bool:
        """Draw on all frames, in the size of the clip; false if stopped."""
        tracks, done, clip = self.tracks(), self._at[1], self.task.clip
        clip = replace(clip, selection=replace(clip.selection, scale=1.0), used=clip.size)
        overlay.resume(done)
        waiting: deque[tuple[int, Future[None]]] = deque()
        with closing(ahead(frames_on(clip, done))) as frames:
            for place, frame in frames:
                if frame.image is not None:
                    overlay.draw(frame.image, place, tracks)
                self._on_progress(DRAWING, place + 1, len(tracks.times))
                if (place + 1) % overlay.piece == 0 and (end := overlay.commit()):
                    waiting.append((place + 1, end))
                while waiting and waiting[0][1].done():
                    self._drawn(*waiting.popleft())
                if not self._watch():
                    for ended in waiting:
                        self._drawn(*ended)
                    return False
        overlay.commit()
        return True

    def _drawn(self, count: int, end: "Future[None]") -> None:
        """Save how many frames are drawn."""
        end.result()
        memory: list[dict[str, float]] = [{"stage": DRAWING, "steps": count}]
        self._checkpoint.save(replace(self._checkpoint.state, memory=memory))

    def finish(self, overlay: OverlayVideo | None) -> tuple[list[Path], dict[str, Any]]:
        """Write the outputs; return their paths, and numbers to print."""
        tracks = self.tracks()
        for path in self.outputs.files:
            write_tracks(path, tracks)
        written = [*self.outputs.files, *([self.outputs.maps] if self.outputs.maps else [])]
        written += [overlay.finish()] if overlay is not None else []
        self._checkpoint.finish(written)
        return written, _summary(tracks)


def _joined(task: Task, forward: Array, back: Array, name: str) -> Array:
    """(N, T, …) one field of both directions; before a reference, that of the backward one."""
    empty = np.nan if forward[name].dtype.kind == "f" else 0
    shape = (task.count, len(forward), *forward[name].shape[2:])
    joined = np.full(shape, empty, forward[name].dtype)
    begin = 0
    for reference, kept in zip(task.references, task.kept, strict=True):
        rows, at = slice(begin, begin := begin + len(kept)), reference.frame
        joined[rows, at:] = forward[name][at:, rows].swapaxes(0, 1)
        if len(back):
            sign = -1 if name == "interval" else 1
            joined[rows, :at] = (sign * back[name][:at, rows]).swapaxes(0, 1)
    return joined[task.order]


def _cuts(forward: Array, back: Array) -> Array:
    """(C,) places at which scenes begin; backward, a cut is noticed after it was passed."""
    found = {*np.flatnonzero(forward["cut"]).tolist()}
    for place in np.flatnonzero(back["cut"]).tolist():
        found.add(place + 1 + int(np.argmin(back["lost"][place + 1 :])))
    return np.array(sorted(found), np.int64)


def _on_host(positions: Positions) -> Any:
    """Positions as arrays."""
    return Positions(*(part.cpu().numpy() for part in positions))  # type: ignore[arg-type]


def _summary(tracks: Tracks) -> dict[str, Any]:
    """Numbers to print at the end."""
    summary: dict[str, Any] = {"cuts": tracks.frames[tracks.cuts].tolist()}
    exists = np.isfinite(tracks.error)
    if exists.any():
        summary["visible_share"] = float(tracks.visible[exists].mean())
        summary["median_expected_error_px"] = float(np.median(tracks.error[exists]))
    return summary


def run(
    task: Task,
    make_tracker: MakeTracker,
    outputs: TrackOutputs,
    checkpoint: Checkpoint,
    watch: Callable[[], bool] = lambda: True,
    on_progress: OnProgress = lambda stage, done, total: None,
) -> tuple[list[Path], dict[str, Any]]:
    """Track, draw and write; return the written paths, none if stopped, and numbers to print.

    `watch` returns whether to continue. `on_progress` gets the stage, the frames done and their
    total. However the run ends, the same call continues it, with the same result.
    """
    work = Run(task, make_tracker, outputs, checkpoint, watch, on_progress)
    try:
        if not work.track():
            return [], {}
        with ExitStack() as stack:
            overlay = outputs.video(checkpoint.folder) if outputs.video else None
            if overlay is not None:
                stack.callback(overlay.stop)
                if not work.draw(overlay):
                    return [], {}
            return work.finish(overlay)
    except InputError as error:
        if not checkpoint.done or isinstance(error, NoReferenceError):
            checkpoint.remove()
        raise
