"""Process a video, from the first frame or from where the last run stopped, into its outputs.

The progress of a run is saved, so that the same command resumes it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from math import lcm
from pathlib import Path

from ..data.frames import Look
from ..errors import InputError, check_name, counted, unknown_name
from ..estimation.estimator import FlowSequence
from ..files import FLOW_SUFFIXES, check_flow_name
from .checkpoint import Checkpoint, State
from .coding import Coding, find_coding, output_kind
from .flows import CUTS, Behind, Flows, FrameFlow, ahead, estimate_flows, settle_cuts
from .frames import Selection, Source
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
    check_name("cuts", cuts, CUTS)
    _resume(writers, checkpoint)
    state, stopped, errors = replace(checkpoint.state), False, list[InputError]()
    piece, total = lcm(*(writer.piece for writer in writers)), selection.expected_flows(source)
    flows = _estimated(source, selection, sequence, state.begin, min_confidence, cuts)
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
        if state.done:
            output.commit(state)
            output.save(wait=True)
    if errors and state.done:
        raise errors[0]
    if stopped and not source.live:
        return []
    if state.missing == state.done:
        checkpoint.remove()
        raise errors[0] if errors else _no_flow(source, state)
    written = [writer.finish() for writer in writers]
    checkpoint.finish(written)
    return written


def _resume(writers: Sequence[Writer], checkpoint: Checkpoint) -> None:
    """Begin a run, or let the writers continue where the last one stopped."""
    if not checkpoint.done:
        checkpoint.save(State(memory=[{} for _ in writers]))
    for writer, memory in zip(writers, checkpoint.state.memory, strict=True):
        writer.memory, writer.done = memory, checkpoint.done
        writer.resume(writer.done)


def _estimated(
    source: Source,
    selection: Selection,
    sequence: FlowSequence,
    begin: int,
    min_confidence: float | None,
    cuts: str,
) -> Flows:
    """The flows from number `begin` on."""
    frames = ahead(selection.frames(source, skip=selection.first_frame(source, begin)))
    # live, a flow should not wait for later frames
    at_most = 1 if source.live else selection.expected_flows(source)
    across = selection.across_gaps
    flows = estimate_flows(frames, sequence, min_confidence, at_most=at_most, across_gaps=across)
    return flows if cuts == "estimate" else settle_cuts(flows, cuts)


def _no_flow(source: Source, state: State) -> InputError:
    """Why there is no flow at all."""
    if state.done:
        return InputError(
            f"nothing is written: none of the {counted(state.done, 'pair')} of frames can be used, "
            f"because {state.lost} of the frames are broken or lost"
        )
    if source.scenes:
        pairs = "KITTI's flow goes from NNNNNN_10 to NNNNNN_11"
        return InputError(f"no pair is selected: {pairs}")
    return InputError("a flow needs at least two frames")


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
