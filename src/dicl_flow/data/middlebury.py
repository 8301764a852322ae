"""Middlebury: flow pairs, and stereo pairs as flow."""

from pathlib import Path

from .listing import complete_pairs, require_folder
from .sample import FlowPair

_FLOW_ADVICE = "point at the folder that holds 'other-data' and 'other-gt-flow'"
_STEREO_ADVICE = (
    "point at the folder that holds the scenes, each a folder with im0.png, im1.png and "
    "disp0.pfm or disp0.npy"
)


def middlebury_pairs(root: Path) -> list[FlowPair]:
    """List the Middlebury flow pairs with public ground truth (8).

    ::

        Middlebury/                       <- root
            other-data/RubberWhale/frame10.png  frame11.png
            other-gt-flow/RubberWhale/flow10.flo
    """
    frames = require_folder(root / "other-data", _FLOW_ADVICE)
    flows = require_folder(root / "other-gt-flow", _FLOW_ADVICE)
    candidates = (
        FlowPair(
            flow.parent.name,
            frames / flow.parent.name / "frame10.png",
            frames / flow.parent.name / "frame11.png",
            flow,
        )
        for flow in flows.glob("*/flow10.flo")
    )
    return complete_pairs(candidates, root, _FLOW_ADVICE)


def stereo_pairs(root: Path) -> list[FlowPair]:
    """List rectified stereo pairs as flow from left to right: (-disparity, 0).

    The layout of the Middlebury stereo data sets of 2014::

        MiddleburyStereo2014/             <- root
            Motorcycle/im0.png  im1.png  disp0.pfm      (or disp0.npy: pixels, NaN: unknown)
    """
    require_folder(root, _STEREO_ADVICE)
    suffixes = (".npy", ".pfm")  # a scene with both is one pair
    scenes = {truth.parent: truth for end in suffixes for truth in root.glob(f"*/disp0{end}")}
    candidates = (
        FlowPair(scene.name, scene / "im0.png", scene / "im1.png", truth, is_disparity=True)
        for scene, truth in scenes.items()
    )
    return complete_pairs(candidates, root, _STEREO_ADVICE)
