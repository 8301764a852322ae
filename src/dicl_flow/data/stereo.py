"""Rectified stereo pairs as flow from left to right, (-disparity, 0)."""

from pathlib import Path

from ..errors import check_name
from .frames import complete_pairs, digits, require_folder
from .sample import FlowPair


def middlebury_stereo_pairs(root: Path) -> list[FlowPair]:
    """List the layout of the Middlebury stereo data sets of 2014.

    MiddleburyStereo2014/             <- root
        Motorcycle/im0.png  im1.png  disp0.pfm      (or disp0.npy: pixels, NaN: unknown)
    """
    advice = (
        "point at the folder that holds the scenes, each a folder with im0.png, im1.png and "
        "disp0.pfm or disp0.npy"
    )
    require_folder(root, advice)
    suffixes = (".npy", ".pfm")  # a scene with both is one pair
    scenes = {truth.parent: truth for end in suffixes for truth in root.glob(f"*/disp0{end}")}
    candidates = (
        FlowPair(scene.name, scene / "im0.png", scene / "im1.png", truth, encoding="disparity")
        for scene, truth in scenes.items()
    )
    return complete_pairs(candidates, root, advice)


_KITTI_EYES = {
    2012: (("colored_0", "colored_1"), ("image_0", "image_1")),
    2015: (("image_2", "image_3"),),
}
_KITTI_TRUTHS = {2012: "disp_{}", 2015: "disp_{}_0"}
KITTI_DOWNLOADS = {2012: "data_stereo_flow.zip", 2015: "data_scene_flow.zip"}


def kitti_stereo_pairs(root: Path, year: int = 2015, truth: str = "occ") -> list[FlowPair]:
    """List the training pairs of KITTI's stereo 2012 (194) or 2015 (200); the truth is sparse.

    `truth` is "occ", all pixels measured by the laser, or "noc", those visible in both frames.
    With "occ", the folder of noc (if present) shows which pixels are occluded. ::

        data_scene_flow/training/         2012: data_stereo_flow
            image_2/000000_10.png             2012: colored_0, or grey: image_0
            image_3/000000_10.png             2012: colored_1, or grey: image_1
            disp_occ_0/000000_10.png          2012: disp_occ
            disp_noc_0/000000_10.png          2012: disp_noc
    """
    check_name("truth of KITTI", truth, ("occ", "noc"))
    split, eyes = root / "training", _KITTI_EYES[year]
    left, right = next((two for two in eyes if (split / two[0]).is_dir()), eyes[0])
    folder, visible = (_KITTI_TRUTHS[year].format(word) for word in (truth, "noc"))
    advice = (
        f"point at the folder that holds 'training' (the unpacked {KITTI_DOWNLOADS[year]}) with "
        f"NNNNNN_10.png in {left}, {right} and {folder}"
    )
    files = require_folder(split / folder, advice).glob(f"{digits(6)}_10.png")
    candidates = (
        FlowPair(
            file.stem,
            split / left / file.name,
            split / right / file.name,
            file,
            encoding="kitti-disparity",
            sparse=True,
            visible_truth=split / visible / file.name if truth == "occ" else None,
        )
        for file in files
    )
    return complete_pairs(candidates, split, advice)


def sintel_stereo_pairs(root: Path, render_pass: str = "clean") -> list[FlowPair]:
    """List the training pairs of Sintel's stereo, "clean" or "final" (1,064 each).

    All pixels count; those hidden in the right frame, or outside it, are occluded. ::

        MPI-Sintel-stereo/training/
            clean_left/alley_1/frame_0001.png           (or final_left)
            clean_right/alley_1/frame_0001.png
            disparities/alley_1/frame_0001.png
            occlusions/alley_1/frame_0001.png           white where hidden (optional)
            outofframe/alley_1/frame_0001.png           white where outside (optional)
    """
    check_name("pass of Sintel's stereo", render_pass, ("clean", "final"))
    split = root / "training"
    advice = (
        f"point at the folder that holds 'training' with {render_pass}_left, {render_pass}_right "
        f"and disparities"
    )
    truths = require_folder(split / "disparities", advice)
    candidates = (
        FlowPair(
            name,
            split / f"{render_pass}_left" / f"{name}.png",
            split / f"{render_pass}_right" / f"{name}.png",
            truth,
            encoding="sintel-disparity",
            occlusion=split / "occlusions" / f"{name}.png",
            outside=split / "outofframe" / f"{name}.png",
        )
        for truth in truths.glob(f"*/frame_{digits(4)}.png")
        for name in (f"{truth.parent.name}/{truth.stem}",)
    )
    return complete_pairs(candidates, split, advice)
