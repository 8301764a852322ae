"""KITTI 2012 and 2015: driving scenes with sparse ground truth."""

import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import unknown_name
from .listing import complete_pairs, digits, require_folder
from .sample import FlowPair

_TRUTHS = ("occ", "noc")
_FRAME_FOLDERS = {2012: ("colored_0", "image_0"), 2015: ("image_2",)}
_FRAME = re.compile(r"([0-9]{6})_1[01]")
_DOWNLOADS = {2012: "data_stereo_flow.zip", 2015: "data_scene_flow.zip"}


def kitti_pairs(root: Path, year: int = 2015, truth: str = "occ") -> list[FlowPair]:
    """List the training pairs of KITTI 2012 (194) or 2015 (200); the truth is sparse.

    `truth` is "occ", all pixels measured by the laser, or "noc", those visible in both frames.
    With "occ", flow_noc (if present) tells which pixels are occluded. ::

        data_scene_flow/                  <- root, 2015
            training/
                image_2/000000_10.png  000000_11.png
                flow_occ/000000_10.png
                flow_noc/000000_10.png

        data_stereo_flow/                 <- root, 2012
            training/
                colored_0/000000_10.png  000000_11.png      (or grey: image_0)
                flow_occ/000000_10.png
                flow_noc/000000_10.png
    """
    if truth not in _TRUTHS:
        raise unknown_name("truth of KITTI", truth, _TRUTHS)
    advice = _advice("training", year)
    frames = _frames(root / "training", year, advice)
    flows = require_folder(root / "training" / f"flow_{truth}", advice)
    candidates = (
        FlowPair(
            flow.stem,
            *_frame_pair(frames, flow.stem),
            flow,
            sparse=True,
            visible_truth=flows.parent / "flow_noc" / flow.name if truth == "occ" else None,
        )
        for flow in flows.glob(f"{digits(6)}_10.png")
    )
    return complete_pairs(candidates, root / "training", advice)


def kitti_test_pairs(root: Path, year: int = 2015) -> list[FlowPair]:
    """List the test pairs of KITTI, in `root`/testing, which have no truth."""
    advice = _advice("testing", year)
    frames = _frames(root / "testing", year, advice)
    candidates = (
        FlowPair(frame.stem, *_frame_pair(frames, frame.stem))
        for frame in frames.glob(f"{digits(6)}_10.png")
    )
    return complete_pairs(candidates, frames, advice)


def kitti_scenes(frames: Sequence[Path]) -> tuple[str, ...]:
    """Return the scene of each frame if all are named as in KITTI, NNNNNN_10 and NNNNNN_11.

    Empty for other frames, which form a single scene.
    """
    found = [_FRAME.fullmatch(frame.stem) for frame in frames]
    scenes = tuple(match[1] for match in found if match is not None)
    return scenes if len(scenes) == len(frames) else ()


def _frames(split: Path, year: int, advice: str) -> Path:
    folders = [split / name for name in _FRAME_FOLDERS[year]]
    found = next((folder for folder in folders if folder.is_dir()), folders[0])
    return require_folder(found, advice)


def _frame_pair(frames: Path, name: str) -> tuple[Path, Path]:
    return frames / f"{name}.png", frames / f"{name.removesuffix('_10')}_11.png"


def _advice(split: str, year: int) -> str:
    advice = (
        f"point at the folder that holds '{split}' (the unpacked {_DOWNLOADS[year]}) with frames "
        f"NNNNNN_10.png and NNNNNN_11.png in {' or '.join(_FRAME_FOLDERS[year])}"
    )
    if split == "training":
        advice += f"; kitti{year % 100} reads flow_occ, kitti{year % 100}:noc reads flow_noc"
    return advice
