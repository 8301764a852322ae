"""Process a video, from the first frame or from where the last run stopped, into its outputs.

The progress of a run is saved, so that the same command resumes it.
"""

import json
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from math import lcm
from pathlib import Path
from typing import Any

from ..data.frames import Look
from ..errors import InputError, counted, setting_in_words, unknown_name
from ..estimation.estimator import FlowSequence
from ..files import FLOW_SUFFIXES, check_flow_name, write_files
from ..files.atomic import FolderLock
from .coding import Coding, find_coding, output_kind
from .flows import CUTS, Behind, Flows, FrameFlow, ahead, estimate_flows, settle_cuts
from .frames import Selection, Source, change_marks
from .movies import PictureVideo
from .sound import Sound
from .writers import (
    EVERYWHERE,
    Covered,
    FlowFiles,
    FlowStack,
    Prepared,
    StatisticsTable,
    Writer,
    parse_panels,
)

_ONLY_FOR = {"show": ["video"], "key": ["video"], "encoder": ["video"], "format": ["folder"]}
_ONLY_FOR |= {"backward": ["folder", "array"], "occlusion": ["folder"]}


@dataclass(frozen=True)
class Outputs:
    """What to write of the flows: at most one video, one array, one folder; and a table."""

    paths: tuple[Path, ...]
    stats: Path | None = None
    """A .csv file with the statistics of each flow."""
    show: str | None = None
    """The pictures of a video, with commas; None: the colour wheel."""
    format: str | None = None
    """The files in a folder, such as npz; None: flo."""
    backward: bool = False
    """Write the backward flow too, to a folder or an array."""
    occlusion: bool = False
    """Write masks of hidden pixels, to a folder."""
    max: float | None = None
    """The length in px that gets full colour; None: the longest vector."""
    key: bool | None = None
    """Explain pictures, with captions and keys; None: if `show` is given."""
    encoder: str | None = None
    """FFmpeg's name of the encoder of a video, with options (`find_coding`)."""
    look: Look | None = None
    """How the source stores its pictures, if it is a video file."""
    sound: Sound | None = None
    """The sound of a video."""

    def __post_init__(self) -> None:
        if len(set(self.kinds.values())) < len(self.paths):
            raise InputError("give one output of a kind: one video, one array, one folder")
        if self.stats is not None and self.stats.suffix.lower() != ".csv":
            raise InputError(f"{self.stats}: the statistics must be a .csv file")
        _ = self.panels, self.coding  # refuse unknown pictures and encoders
        if self.max is not None and not self.max > 0:
            raise InputError(f"`max` must be positive, got {self.max:g}")
        if self.format is not None and f".{self.format}" not in FLOW_SUFFIXES:
            raise unknown_name("`format`", self.format, [suffix[1:] for suffix in FLOW_SUFFIXES])
        check_flow_name(self.suffix)
        for name, kinds in _ONLY_FOR.items():
            if getattr(self, name) not in (None, False) and not {*kinds} & {*self.kinds.values()}:
                hint = "; a video has `show='occlusion'`" if name == "occlusion" else ""
                meant = " or ".join(kinds)
                raise InputError(f"`{name}` is for a {meant}, and no output is one{hint}")

    @property
    def kinds(self) -> dict[Path, str]:
        """What each output is: a video, an array or a folder."""
        return {path: output_kind(path) for path in self.paths}

    @property
    def panels(self) -> tuple[str, ...]:
        """The names of the pictures of a video."""
        return parse_panels("wheel" if self.show is None else self.show)

    @cached_property
    def coding(self) -> Coding | None:
        """How the video is encoded, if there is one."""
        videos = [path for path, kind in self.kinds.items() if kind == "video"]
        return find_coding(videos[0], self.encoder, self.look) if videos else None

    @property
    def suffix(self) -> str:
        """The ending of the files in a folder."""
        return f".{self.format or 'flo'}"

    @property
    def needs_backward(self) -> bool:
        """Whether the flow has to be estimated in both directions."""
        return self.backward or self.occlusion or "occlusion" in self.panels

    def writers(self, parts: Path, rate: float, covered: Covered = EVERYWHERE) -> list[Writer]:
        """Make the writers; `parts` is a folder for what is not finished."""

        def make(path: Path, kind: str) -> Writer:
            if kind == "folder":
                both = {"backward": self.backward, "occlusion": self.occlusion}
                return FlowFiles(path, self.suffix, **both)
            if kind == "array":
                return FlowStack(path, parts, backward=self.backward)
            key = self.show is not None if self.key is None else self.key
            how = self.panels, self.max, self.coding, self.sound
            return PictureVideo(path, parts, rate, *how, key=key)

        made = [make(path, kind) for path, kind in self.kinds.items()]
        return [*made, *([StatisticsTable(self.stats, parts, covered)] if self.stats else [])]


@dataclass
class State:
    """The progress of a run."""

    done: int = 0
    """Flows that need not be computed again."""
    missing: int = 0
    """How many of them do not exist because a frame is broken."""
    lost: int = 0
    """Frames that are broken or lost."""
    last_lost: int = -1
    """The number of the last of them."""
    begin: int = 0
    """The first flow to estimate: number `done`, or an earlier one that cuts still show."""
    memory: list[dict[str, float]] = field(default_factory=list)
    """What each writer remembers of earlier flows."""


class Checkpoint:
    """The folder OUTPUT.parts, next to the output, that holds an unfinished run.

    state.json contains the settings of the run and its `State`; frames.json lists the files of the
    frames. `used` returns how many frames a number of flows needs. The folder is locked until the
    `with` block ends. With `remember`, the hidden file .OUTPUT.finished.json next to the output
    holds the same of a finished run.
    """

    def __init__(
        self,
        output: Path,
        settings: Mapping[str, Any],
        *,
        frames: Sequence[Path] = (),
        used: Callable[[int], int] = lambda flows: flows + 1,
        restart: bool = False,
        remember: bool = False,
    ) -> None:
        self._output = output
        output = output.resolve()
        self._record = output.with_name(f".{output.name}.finished.json") if remember else None
        self.finished = False
        """Whether there is nothing left to do."""
        self.folder = output.with_name(f"{output.name}.parts")
        self._path = self.folder / "state.json"
        self._frames_path = self.folder / "frames.json"
        self._frames = {  # a broken link has no change marks
            str(path.absolute()): change_marks(path) if path.exists() else {} for path in frames
        }
        self._settings = json.loads(json.dumps(settings, default=str))
        self._used, self._frames_saved = used, False
        self.state = State()
        self._lock = FolderLock(self.folder)
        strange = any(not path.name.startswith(".") for path in self.folder.glob("*"))
        if strange and not self._path.exists():
            raise InputError(f"{self.folder} is in the way: unfinished runs are stored there")
        if not self._lock.acquire():
            raise InputError(
                f"another run is writing to {self.folder}; wait until it ends, or give another "
                "output"
            )
        try:
            if restart:
                self._clear()
                if self._record:
                    self._record.unlink(missing_ok=True)
            elif self._path.exists():
                self._resume()
            elif self._record and self._record.exists():
                self._recall(self._record)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *error: object) -> None:
        if self._path.exists():
            self._lock.release()
        else:
            self._lock.remove()  # nothing was saved

    @property
    def done(self) -> int:
        """How many flows need not be computed again."""
        return self.state.done

    def save(self, state: State) -> None:
        """Save the progress of the run."""
        self.state = state
        saved = {"settings": self._settings, **asdict(state)}
        contents = {self._path: json.dumps(saved, indent=1).encode()}
        if self._frames and not self._frames_saved:  # only once: there may be thousands
            contents[self._frames_path] = json.dumps(self._frames).encode()
        write_files(contents)
        self._frames_saved = True

    def finish(self, written: Sequence[Path]) -> None:
        """Note what was written, if the run is to be remembered, and remove the folder."""
        if self._record:
            record = {"settings": self._settings, **asdict(self.state), "frames": self._frames}
            record["written"] = {str(path.resolve()): _contents(path) for path in written}
            write_files({self._record: json.dumps(record).encode()})
        self.remove()

    def remove(self) -> None:
        """Remove the folder: nothing is left to do."""
        self._clear()
        self._lock.remove()

    def _clear(self) -> None:
        """Remove all but the lock; the state last, because it marks the folder as a checkpoint.

        Until then it is empty: killed in between, the run must not be resumed with what is left.
        """
        if self._path.exists():
            write_files({self._path: b"{}"})
        for path in sorted(self.folder.iterdir(), key=self._path.__eq__):
            if path.is_dir():
                shutil.rmtree(path)
            elif path != self._lock.path:
                path.unlink()

    def _resume(self) -> None:
        with _undamaged(self._path) as saved:
            settings = dict(saved.pop("settings")) if saved else {}
            self.state = State(**saved)
        if not saved:  # killed while it was removed
            return self._clear()
        self._compare(settings, f"{self.folder} holds an unfinished run")
        if self._frames and self.done:
            with _undamaged(self._frames_path) as frames:
                before: dict[str, Any] = dict(frames)
            self._compare_frames(before, f"{self.folder} holds an unfinished run")

    def _recall(self, record: Path) -> None:
        """Find out whether this is the run that made the output, if that is still as it was."""
        with _undamaged(record) as saved:
            settings, frames, written = (
                dict(saved.pop(name)) for name in ("settings", "frames", "written")
            )
            state = State(**saved)
        if any(_contents(Path(path)) != before for path, before in written.items()):
            return
        self.state = state
        self._compare(settings, f"{self._output} is the result of a finished run")
        self._compare_frames(frames, f"{self._output} is the result of a finished run")
        self.finished = True

    def _compare(self, settings: dict[str, Any], what: str) -> None:
        """Refuse other settings than those of `what`."""
        changes = [
            _change(key, settings.get(key), self._settings.get(key))
            for key in {**settings, **self._settings}
            if settings.get(key) != self._settings.get(key)
        ]
        if changes:
            raise InputError(
                f"{what} with other settings: {', '.join(changes)}; use the same settings"
                f", or start again with `restart=True`"
            )

    def _compare_frames(self, before: dict[str, Any], what: str) -> None:
        """Refuse other frames; a frame without a flow so far may have been repaired."""
        used = list(before)[: self._used(self.done)]
        counts = {
            "added": sum(name not in before for name in self._frames),
            "changed": sum(before[name] != self._frames.get(name, before[name]) for name in used),
            "gone": sum(name not in self._frames for name in before),
        }
        changes = ", ".join(f"{count} {how}" for how, count in counts.items() if count)
        if changes:
            raise InputError(
                f"{what} of other frames ({changes} since); restore them, or "
                "start again with `restart=True`"
            )


def _contents(path: Path) -> dict[str, object]:
    """Marks of an output that differ if it has changed; of a folder, the number of its files."""
    if path.is_dir():
        return {"files": sum(1 for _ in path.iterdir())}
    return change_marks(path) if path.exists() else {}


@contextmanager
def _undamaged(path: Path) -> Iterator[Any]:
    """Yield what a file of a checkpoint contains; refuse it if that cannot be used."""
    try:
        yield json.loads(path.read_text())
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path} is damaged; start again with `restart=True`") from None


def _change(setting: str, before: Any, now: Any) -> str:
    """Describe how a setting differs: "stride was 1 and is 2 now"."""
    name = setting.replace("_", " ")
    paths = [value.get("path") if isinstance(value, dict) else value for value in (before, now)]
    if paths[0] == paths[1]:  # of files, whose stamps differ
        return f"{name} ({paths[1]}) changed since"
    return "{} was {} and is {} now".format(name, *map(setting_in_words, paths))


def run(
    source: Source,
    selection: Selection,
    sequence: FlowSequence,
    writers: Sequence[Writer],
    checkpoint: Checkpoint,
    watch: Callable[[FrameFlow], bool] = lambda flow: True,
    min_confidence: float | None = None,
    *,
    cuts: str = "estimate",
    on_progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> list[Path]:
    """Pass each flow to all writers; return the written paths, none if the run was stopped.

    `watch` gets each flow and returns whether to continue. `on_progress` gets the number of flows
    done, earlier runs included, and the expected total (None: unknown). `cuts` is one of `CUTS`.
    One thread decodes frames ahead, another writes results. If the run ends early for any reason,
    the same call resumes it after the last flows that were committed; the recording of a camera is
    finished instead.
    """
    if source.live and checkpoint.done:
        raise InputError("a camera recording cannot be resumed; start again with `restart=True`")
    if cuts not in CUTS:
        raise unknown_name("cuts", cuts, CUTS)
    if not checkpoint.done:
        checkpoint.save(State(memory=[{} for _ in writers]))
    for writer, memory in zip(writers, checkpoint.state.memory, strict=True):
        writer.memory, writer.done = memory, checkpoint.done
        writer.resume(writer.done)
    piece, total = lcm(*(writer.piece for writer in writers)), selection.expected_flows(source)
    state, stopped, errors = replace(checkpoint.state), False, list[InputError]()
    frames = ahead(selection.frames(source, skip=selection.first_frame(source, state.begin)))
    at_most = 1 if source.live else total  # live, a flow should not wait for later frames
    across = selection.across_gaps
    flows = estimate_flows(frames, sequence, min_confidence, at_most=at_most, across_gaps=across)
    if cuts != "estimate":
        flows = settle_cuts(flows, cuts)
    new, output = _new_flows(flows, state.done - state.begin, errors), _Output(writers, checkpoint)
    with ExitStack() as stack:
        for writer in writers:
            stack.callback(writer.stop)
        with closing(new), Behind() as behind:
            for flow in new:
                prepared = [None if flow.problem else writer.prepare(flow) for writer in writers]
                behind.do(partial(output.write, flow, prepared))
                _count(state, flow, cuts)
                if state.done % piece == 0:
                    behind.do(partial(output.commit, replace(state)))
                stopped = not watch(flow)
                on_progress(state.done, total)
                if stopped:
                    break
        if not state.done:
            checkpoint.remove()
            needs = "a flow needs at least two frames"
            if source.scenes:
                needs = "no pair is selected: KITTI's flow goes from NNNNNN_10 to NNNNNN_11"
            raise errors[0] if errors else InputError(needs)
        output.commit(state)
        output.save(wait=True)
    if errors:
        raise errors[0]
    if stopped and not source.live:
        return []
    if state.missing == state.done:
        checkpoint.remove()
        raise InputError(
            f"nothing is written: none of the {counted(state.done, 'pair')} of frames can be used, "
            f"because {state.lost} of the frames are broken or lost"
        )
    written = [writer.finish() for writer in writers]
    checkpoint.finish(written)
    return written


def _new_flows(flows: Flows, known: int, errors: list[InputError]) -> Flows:
    """Yield all flows except the first `known`; an error ends them, to be raised after a commit."""
    try:
        with closing(flows):
            yield from islice(flows, known, None)
    except InputError as error:
        errors.append(error)


def _count(state: State, flow: FrameFlow, cuts: str) -> None:
    """Count a flow that was passed to the writers."""
    holds = cuts == "hold" and state.begin < state.done
    if cuts == "hold" and not flow.problem and not flow.is_cut:
        state.begin, holds = state.done, True
    state.done += 1
    state.missing += bool(flow.problem)
    if broken := flow.broken_after(state.last_lost):
        state.lost, state.last_lost = state.lost + len(broken), broken[-1].number
    if not holds:
        state.begin = state.done


class _Output:
    """All writers of a run; saves how far it is when they have committed."""

    def __init__(self, writers: Sequence[Writer], checkpoint: Checkpoint) -> None:
        self._writers, self._checkpoint = writers, checkpoint
        self._waiting: deque[tuple[State, list[Future[None]]]] = deque()

    def write(self, flow: FrameFlow, prepared: list[Prepared | None]) -> None:
        for writer, array in zip(self._writers, prepared, strict=True):
            writer.write(flow, array() if callable(array) else array)
            writer.done += 1
        self.save()

    def commit(self, state: State) -> None:
        ends = [writer.commit() for writer in self._writers]
        memory = [dict(writer.memory) for writer in self._writers]
        self._waiting.append((replace(state, memory=memory), [end for end in ends if end]))
        self.save()

    def save(self, *, wait: bool = False) -> None:
        """Save the states whose flows are committed, in order; with `wait`, all."""
        while self._waiting and (wait or all(end.done() for end in self._waiting[0][1])):
            state, ends = self._waiting.popleft()
            for end in ends:
                end.result()
            self._checkpoint.save(state)
