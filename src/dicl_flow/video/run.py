"""A video from the first frame to the last, or from where the last run was stopped."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from math import lcm
from pathlib import Path

from ..errors import InputError
from ..inputs import Array
from ..sequence import FlowSequence
from .checkpoint import Checkpoint
from .flows import FrameFlow, estimate_flows
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
) -> list[Path]:
    """Hand each flow to all writers; return what was written, nothing if the run was stopped.

    `watch` sees each flow and says whether to go on. Frames are decoded ahead, in a thread of
    their own, and results written behind, in another. After an early end, whatever its reason,
    the same call goes on from the last piece that was safe; a camera's run is finished instead.
    """
    if source.live and checkpoint.done:
        raise InputError("what a camera saw cannot be gone on with; begin anew with `restart=True`")
    _resume(writers, checkpoint)
    piece = lcm(*(writer.piece for writer in writers))
    frames = ahead(selection.frames(source, skip=checkpoint.done))
    count, stopped, errors = checkpoint.done, False, list[InputError]()
    estimates = estimate_flows(frames, sequence, min_confidence)
    with closing(estimates) as flows, Behind() as behind:
        for flow in _until_error(flows, errors):
            prepared = [None if flow.problem else writer.prepare(flow) for writer in writers]
            behind.do(partial(_write, writers, flow, prepared))
            count += 1
            if count % piece == 0:
                behind.do(partial(_commit, writers, checkpoint, count))
            stopped = not watch(flow)
            if stopped:
                break
    if not count:
        checkpoint.remove()
        raise errors[0] if errors else InputError("it takes two frames at least to have a flow")
    _commit(writers, checkpoint, count)
    if errors:
        raise errors[0]
    if stopped and not source.live:
        return []
    written = [writer.finish() for writer in writers]
    checkpoint.remove()
    return written


def _resume(writers: Sequence[Writer], checkpoint: Checkpoint) -> None:
    if not checkpoint.done:
        checkpoint.save(0, [{} for _ in writers])
    for writer, memory in zip(writers, checkpoint.memory, strict=True):
        writer.memory = memory
        writer.resume(checkpoint.done)


def _write(writers: Sequence[Writer], flow: FrameFlow, prepared: list[Array | None]) -> None:
    for writer, array in zip(writers, prepared, strict=True):
        writer.write(flow, array)


def _commit(writers: Sequence[Writer], checkpoint: Checkpoint, count: int) -> None:
    for writer in writers:
        writer.commit()
    checkpoint.save(count, [writer.memory for writer in writers])


def _until_error(flows: Iterator[FrameFlow], errors: list[InputError]) -> Iterator[FrameFlow]:
    """Stop at a broken frame: what came before it is to be made safe first."""
    try:
        yield from flows
    except InputError as error:
        errors.append(error)
