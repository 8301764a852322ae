"""Process a video, from the first frame or from where the last run stopped, into its outputs."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import lcm
from pathlib import Path

from ..data.frames import pyav
from ..errors import InputError, unknown_name
from ..estimation.sequence import FlowSequence
from ..files import FLOW_SUFFIXES, check_flow_name
from .checkpoint import Checkpoint, State
from .cuts import CUTS
from .encoding import CODINGS, Coding, exact_rate, find_coding
from .flows import Flows, FrameFlow, estimate_flows, settle_cuts
from .frames import Selection
from .movies import PictureVideo
from .panels import parse_panels
from .sources import Source
from .threads import Behind, ahead
from .writers import FlowFiles, FlowStack, Prepared, StatisticsTable, Writer


def output_kind(output: Path) -> str:
    """Return what an output is, by its name: video, array or folder."""
    suffix = output.suffix.lower()
    if output.is_dir() or not suffix:
        return "folder"
    if suffix in CODINGS:
        pyav()  # complain now if it is not installed
        return "video"
    if suffix == ".npy":
        return "array"
    raise InputError(
        f"{output}: a video must end in {', '.join(CODINGS)}, an array in .npy, a folder in nothing"
    )


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
    encoder: str | None = None
    """FFmpeg's name of the encoder of a video, with options (`find_coding`)."""

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
        self._refuse("show", self.show is not None, "video")
        self._refuse("encoder", self.encoder is not None, "video")
        self._refuse("format", self.format is not None, "folder")
        self._refuse("backward", self.backward, "folder", "array")
        hint = "; a video has `show='occlusion'`"
        self._refuse("occlusion", self.occlusion, "folder", hint=hint)

    def _refuse(self, name: str, given: bool, *kinds: str, hint: str = "") -> None:
        """Refuse an option that makes no sense for these outputs."""
        if given and not set(kinds) & set(self.kinds.values()):
            raise InputError(f"`{name}` is for a {' or '.join(kinds)}, and no output is one{hint}")

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
        return find_coding(videos[0], self.encoder) if videos else None

    @property
    def suffix(self) -> str:
        """The ending of the files in a folder."""
        return f".{self.format or 'flo'}"

    @property
    def needs_backward(self) -> bool:
        """Whether the flow has to be estimated in both directions."""
        return self.backward or self.occlusion or "occlusion" in self.panels

    def writers(self, parts: Path, rate: float) -> list[Writer]:
        """Make the writers; `parts` is a folder for what is not finished."""

        def make(path: Path, kind: str) -> Writer:
            if kind == "folder":
                both = {"backward": self.backward, "occlusion": self.occlusion}
                return FlowFiles(path, self.suffix, **both)
            if kind == "array":
                return FlowStack(path, parts, backward=self.backward)
            rest = (exact_rate(rate), self.panels, self.max, self.coding)
            return PictureVideo(path, parts, *rest)

        made = [make(path, kind) for path, kind in self.kinds.items()]
        return [*made, *([StatisticsTable(self.stats, parts)] if self.stats else [])]


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
    _resume(writers, checkpoint)
    piece, total = lcm(*(writer.piece for writer in writers)), selection.expected_flows(source)
    state, stopped, errors = replace(checkpoint.state), False, list[InputError]()
    at_most = 1 if source.live else total  # live, a flow should not wait for later frames
    new = _new_flows(source, selection, sequence, min_confidence, cuts, state, at_most)
    with _Output(writers, checkpoint) as output:
        with closing(new) as flows, Behind() as behind:
            for flow in _until_error(flows, errors):
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
            raise errors[0] if errors else _no_flow(source)
        output.commit(state)
        output.save(wait=True)
    if errors:
        raise errors[0]
    if stopped and not source.live:
        return []
    written = [writer.finish() for writer in writers]
    checkpoint.remove()
    return written


def _new_flows(
    source: Source,
    selection: Selection,
    sequence: FlowSequence,
    min_confidence: float | None,
    cuts: str,
    state: State,
    at_most: int | None,
) -> Flows:
    """Yield the flows that are not done; one that cuts still show is estimated again first."""
    frames = selection.frames(source, skip=selection.first_frame(source, state.begin))
    flows = estimate_flows(ahead(frames), sequence, min_confidence, at_most=at_most)
    if cuts != "estimate":
        flows = settle_cuts(flows, cuts)
    known = state.done - state.begin
    with closing(flows):
        for number, flow in enumerate(flows):
            if number >= known:
                yield flow


def _count(state: State, flow: FrameFlow, cuts: str) -> None:
    """Count a flow that was passed to the writers."""
    holds = cuts == "hold" and state.begin < state.done
    if cuts == "hold" and not flow.problem and not flow.is_cut:
        state.begin, holds = state.done, True
    state.done += 1
    state.missing += bool(flow.problem)
    if not holds:
        state.begin = state.done


def _no_flow(source: Source) -> InputError:
    if source.scenes:
        return InputError("no pair is selected: KITTI's flow goes from NNNNNN_10 to NNNNNN_11")
    return InputError("a flow needs at least two frames")


def _resume(writers: Sequence[Writer], checkpoint: Checkpoint) -> None:
    if not checkpoint.done:
        checkpoint.save(State(memory=[{} for _ in writers]))
    for writer, memory in zip(writers, checkpoint.state.memory, strict=True):
        writer.memory = memory
        writer.resume(checkpoint.done)


class _Output:
    """All writers of a run; saves how far it is when they have committed."""

    def __init__(self, writers: Sequence[Writer], checkpoint: Checkpoint) -> None:
        self._writers, self._checkpoint = writers, checkpoint
        self._waiting: deque[tuple[State, list[Future[None]]]] = deque()

    def __enter__(self) -> "_Output":
        return self

    def __exit__(self, *error: object) -> None:
        for writer in self._writers:
            writer.stop()

    def write(self, flow: FrameFlow, prepared: list[Prepared | None]) -> None:
        """Write a flow."""
        for writer, array in zip(self._writers, prepared, strict=True):
            writer.write(flow, array() if callable(array) else array)
        self.save()

    def commit(self, state: State) -> None:
        """Commit all flows so far."""
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


def _until_error(flows: Iterator[FrameFlow], errors: list[InputError]) -> Iterator[FrameFlow]:
    """Stop at a broken frame, so that earlier flows are committed before the error is raised."""
    try:
        yield from flows
    except InputError as error:
        errors.append(error)
