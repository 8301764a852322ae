"""MPI-Sintel: training and test pairs."""

from pathlib import Path

from ..errors import unknown_name
from .listing import complete_pairs, digits, neighbour, require_folder
from .sample import FlowPair

_PASSES = ("clean", "final")
_ADVICE = (
    "point at the folder that holds 'training' and 'test' (the unpacked MPI-Sintel-complete.zip)"
)


def sintel_pairs(root: Path, render_pass: str = "clean") -> list[FlowPair]:
    """List the training pairs of MPI-Sintel, "clean" or "final" (1,041 each).

    ::

        MPI-Sintel-complete/              <- root
            training/
                clean/alley_1/frame_0001.png
                final/alley_1/frame_0001.png
                flow/alley_1/frame_0001.flo
                occlusions/alley_1/frame_0001.png     white where hidden in frame 2 (optional)
                invalid/alley_1/frame_0001.png        white where the truth is unreliable (optional)

    All pixels count, as in the authors' training and evaluation, unless `FlowPair.valid_only`.
    """
    frames = _frames(root / "training", render_pass)
    flows = require_folder(root / "training" / "flow", _ADVICE)
    return complete_pairs(
        (_pair(flow, frames, root) for flow in flows.glob(f"*/frame_{digits(4)}.flo")),
        root / "training",
        f"a pair is flow/SCENE/frame_0001.flo with frame_0001.png and frame_0002.png in "
        f"{render_pass}/SCENE",
    )


def sintel_test_pairs(root: Path, render_pass: str = "clean") -> list[FlowPair]:
    """List the test pairs of MPI-Sintel, in `root`/test/clean or final, which have no truth."""
    frames = _frames(root / "test", render_pass)
    candidates = (
        FlowPair(_name(frame), frame, neighbour(frame))
        for frame in frames.glob(f"*/frame_{digits(4)}.png")
    )
    return complete_pairs(candidates, frames, "a pair is SCENE/frame_0001.png and frame_0002.png")


def _frames(split: Path, render_pass: str) -> Path:
    if render_pass not in _PASSES:
        raise unknown_name("pass of MPI-Sintel", render_pass, _PASSES)
    return require_folder(split / render_pass, _ADVICE)


def _pair(flow: Path, frames: Path, root: Path) -> FlowPair:
    name = _name(flow)
    return FlowPair(
        name,
        frames / f"{name}.png",
        neighbour(frames / f"{name}.png"),
        flow,
        occlusion=root / "training" / "occlusions" / f"{name}.png",
        invalid=root / "training" / "invalid" / f"{name}.png",
    )


def _name(file: Path) -> str:
    """SCENE/frame_0001, as the benchmark calls it."""
    return f"{file.parent.name}/{file.stem}"
