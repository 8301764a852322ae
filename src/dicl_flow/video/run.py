"""Process a video from the first frame to the last, or from where the last run stopped."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from math import lcm
from pathlib import Path

from ..errors import InputError, unknown_name
from ..estimation.sequence import FlowSequence
from ..files import Array
from .checkpoint import Checkpoint, State
from .cuts import CUTS
from .flows import Flows, FrameFlow, estimate_flows, settle_cuts
from .frames import Selection
from .sources import Source
from .threads import Behind, ahead
from .writers import Writer


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
    new = _new_flows(source, selection, sequence, min_confidence, cuts, state)
    with closing(new) as flows, Behind() as behind:
        for flow in _until_error(flows, errors):
            prepared = [None if flow.problem else writer.prepare(flow) for writer in writers]
            behind.do(partial(_write, writers, flow, prepared))
            _count(state, flow, cuts)
            if state.done % piece == 0:
                behind.do(partial(_commit, writers, checkpoint, replace(state)))
            stopped = not watch(flow)
            on_progress(state.done, total)
            if stopped:
                break
    if not state.done:
        checkpoint.remove()
        raise errors[0] if errors else _no_flow(source)
    _commit(writers, checkpoint, state)
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
) -> Flows:
    """Yield the flows that are not done; one that cuts still show is estimated again first."""
    frames = selection.frames(source, skip=selection.first_frame(source, state.begin))
    flows = estimate_flows(ahead(frames), sequence, min_confidence)
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


def _write(writers: Sequence[Writer], flow: FrameFlow, prepared: list[Array | None]) -> None:
    for writer, array in zip(writers, prepared, strict=True):
        writer.write(flow, array)


def _commit(writers: Sequence[Writer], checkpoint: Checkpoint, state: State) -> None:
    for writer in writers:
        writer.commit()
    checkpoint.save(replace(state, memory=[writer.memory for writer in writers]))


def _until_error(flows: Iterator[FrameFlow], errors: list[InputError]) -> Iterator[FrameFlow]:
    """Stop at a broken frame, so that earlier flows are committed before the error is raised."""
    try:
        yield from flows
    except InputError as error:
        errors.append(error)
