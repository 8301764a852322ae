"""Rendered worlds: Monkaa, Driving, Spring, TartanAir, Virtual KITTI 2 and VIPER.

Their layouts follow the publishers' pages and tools, which docs/how-to/data-sets.md names.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from ..errors import check_name
from ..files import check_flow_name
from .frames import complete_pairs, digits, neighbour, require_folder
from .sample import FlowPair

PASSES = ("clean", "final")
SIDES = ("all", "left-forward")
"""Both eyes and both directions in time, or the left eye, forward in time."""
_VIEWS = {"left": "L", "right": "R"}
DIRECTIONS = {"into_future": 1, "into_past": -1}  # frame 2 is the next or the previous frame


def scene_flow_pairs(
    root: Path, folders: str, images: Path, unused: Iterable[Path] = ()
) -> Iterator[FlowPair]:
    """Yield the pairs of FlyingThings3D, Monkaa or Driving; `folders` is a pattern of scenes."""
    flows, left_out = root / "optical_flow", {*unused}
    for scene in filter(Path.is_dir, flows.glob(folders)):
        place = scene.relative_to(flows)
        for (view, letter), (direction, step) in product(_VIEWS.items(), DIRECTIONS.items()):
            for flow in (scene / direction / view).glob(f"Optical*_{digits(4)}_{letter}.pfm"):
                frame = images / place / view / f"{flow.stem[-6:-2]}.png"
                name = f"{(place / view).as_posix()}/{direction}/{frame.stem}"
                pair = FlowPair(name, frame, neighbour(frame, step), flow)
                if not {pair.image1, pair.image2} & left_out:
                    yield pair


def monkaa_pairs(root: Path, render_pass: str = "clean", sides: str = "all") -> list[FlowPair]:
    """List Monkaa, "clean" or "final"; `sides` is one of `SIDES`.

    Monkaa/                           <- root
        frames_cleanpass/a_rain_of_stones_x2/left/0000.png        (frames_finalpass for "final")
        optical_flow/a_rain_of_stones_x2/into_future/left/OpticalFlowIntoFuture_0000_L.pfm
    """
    return _film("monkaa", root, "[!.]*", render_pass, sides)


def driving_pairs(root: Path, render_pass: str = "clean", sides: str = "all") -> list[FlowPair]:
    """List Driving, "clean" or "final"; `sides` is one of `SIDES`.

    Driving/                          <- root
        frames_cleanpass/35mm_focallength/scene_forwards/slow/left/0001.png
        optical_flow/35mm_focallength/scene_forwards/slow/into_future/left/
            OpticalFlowIntoFuture_0001_L.pfm
    """
    return _film("driving", root, "*mm_focallength/scene_*/[!.]*", render_pass, sides)


def _film(name: str, root: Path, folders: str, render_pass: str, sides: str) -> list[FlowPair]:
    check_name(f"pass of {name}", render_pass, PASSES)
    advice = (
        f"for {name}-{render_pass}, point at the folder that holds 'frames_{render_pass}pass' and "
        f"'optical_flow', both unpacked"
    )
    images = require_folder(root / f"frames_{render_pass}pass", advice)
    pairs = complete_pairs(scene_flow_pairs(root, folders, images), images, advice)
    return _of_sides(pairs, sides, "/left/into_future/", advice)


def _of_sides(pairs: list[FlowPair], sides: str, words: str, advice: str) -> list[FlowPair]:
    """Keep the pairs of a choice of `SIDES`; `words` are in the names of left and forward."""
    check_name("sides", sides, SIDES)
    chosen = pairs if sides == "all" else [pair for pair in pairs if words in pair.name]
    if not chosen:
        raise FileNotFoundError(f"no pair of the left eye, forward in time; {advice}")
    return chosen


_SPRING_DIRECTIONS = {"FW": 1, "BW": -1}
_SPRING_REGIONS = {"high_detail": "detailmap_flow", "nonrigid": "rigidmap", "sky": "skymap"}


def spring_pairs(root: Path, sides: str = "all") -> list[FlowPair]:
    """List the training pairs of Spring (19,852); `sides` is one of `SIDES`.

    Frames are 1920x1080, the truth 3840x2160: four vectors for each pixel, in pixels of the frames.
    Training takes the upper left one of each four, `eval` the nearest, as the benchmark does. ::

        spring/                           <- root
            train/0001/frame_left/frame_left_0001.png
            train/0001/flow_FW_left/flow_FW_left_0001.flo5      (FW, BW; left, right)
            train/0001/maps/detailmap_flow_FW_left/detailmap_flow_FW_left_0001.png
                            matchmap_flow_FW_left  rigidmap_FW_left  skymap_left     (optional)
    """
    split = root / "train"
    frames = f"frame_left/frame_left_{'N' * 4}.png and flow_FW_left/flow_FW_left_{'N' * 4}.flo5"
    advice = f"point at the folder that holds 'train', with {frames} in each scene"
    require_folder(split, advice)
    check_flow_name("truth.flo5")  # needs a library
    candidates = (
        _spring_pair(scene, view, direction, flow.stem[-4:], flow)
        for scene in split.glob(digits(4))
        for view, direction in product(_VIEWS, _SPRING_DIRECTIONS)
        for flow in _numbered(scene / f"flow_{direction}_{view}", ".flo5")
    )
    return _of_sides(complete_pairs(candidates, split, advice), sides, "/flow_FW_left/", advice)


def spring_test_pairs(root: Path) -> list[FlowPair]:
    """List the test pairs of Spring (3,960), in `root`/test, which have no truth.

    The name of a pair is that of its file in a submission: 0003/flow_FW_left/flow_FW_left_0001.
    """
    split = root / "test"
    advice = "point at the folder that holds 'test', with frame_left/frame_left_NNNN.png in a scene"
    require_folder(split, advice)
    candidates = (
        _spring_pair(scene, view, direction, frame.stem[-4:])
        for scene in split.glob(digits(4))
        for view, direction in product(_VIEWS, _SPRING_DIRECTIONS)
        for frame in _numbered(scene / f"frame_{view}", ".png")
    )
    return complete_pairs(candidates, split, advice)


def _numbered(folder: Path, suffix: str) -> Iterator[Path]:
    """Yield folder/folder_NNNN.suffix."""
    return folder.glob(f"{folder.name}_{digits(4)}{suffix}")


def _spring_pair(
    scene: Path, view: str, direction: str, number: str, flow: Path | None = None
) -> FlowPair:
    frame = scene / f"frame_{view}" / f"frame_{view}_{number}.png"
    folder = f"flow_{direction}_{view}"
    name = f"{scene.name}/{folder}/{folder}_{number}"
    image2 = neighbour(frame, _SPRING_DIRECTIONS[direction])
    if flow is None:
        return FlowPair(name, frame, image2)

    def map_file(kind: str) -> Path:
        end = view if kind == "skymap" else f"{direction}_{view}"
        return scene / "maps" / f"{kind}_{end}" / f"{kind}_{end}_{number}.png"

    regions = tuple((region, map_file(kind)) for region, kind in _SPRING_REGIONS.items())
    hidden = map_file("matchmap_flow")
    return FlowPair(name, frame, image2, flow, is_fine=True, occlusion=hidden, regions=regions)


def tartanair_pairs(root: Path) -> list[FlowPair]:
    """List TartanAir: the left eye, forward in time, "Easy" and "Hard".

    The flow is that of a still world seen by a moving camera. Its mask is needed: where that says
    that something hides the pixel, the pixel may have moved itself, and is left out. ::

        TartanAir/                        <- root
            abandonedfactory/Easy/P000/image_left/000000_left.png
            abandonedfactory/Easy/P000/flow/000000_000001_flow.npy  000000_000001_mask.npy
    """
    advice = (
        "point at the folder that holds the scenes, with SCENE/Easy/P000/image_left and "
        "SCENE/Easy/P000/flow, which has both NNNNNN_NNNNNN_flow.npy and …_mask.npy"
    )
    require_folder(root, advice)
    candidates = (
        _tartanair_pair(root, flow)
        for level in ("Easy", "Hard")
        for flow in root.glob(f"[!.]*/{level}/P*/flow/{digits(6)}_{digits(6)}_flow.npy")
    )
    return complete_pairs(candidates, root, advice)


def _tartanair_pair(root: Path, flow: Path) -> FlowPair:
    place, (first, second, _) = flow.parents[1], flow.stem.split("_")
    name = f"{place.relative_to(root).as_posix()}/{first}"
    image1, image2 = (place / "image_left" / f"{number}_left.png" for number in (first, second))
    codes = flow.with_name(f"{first}_{second}_mask.npy")
    return FlowPair(name, image1, image2, flow, codes=codes)


def virtual_kitti_pairs(root: Path, sides: str = "all") -> list[FlowPair]:
    """List Virtual KITTI 2 in all its variants; `sides` is one of `SIDES`.

    VirtualKITTI2/                    <- root
        Scene01/clone/frames/rgb/Camera_0/rgb_00000.jpg               (Camera_1: the right eye)
        Scene01/clone/frames/forwardFlow/Camera_0/flow_00000.png
        Scene01/clone/frames/backwardFlow/Camera_0/backwardFlow_00001.png
    """
    advice = (
        "point at the folder that holds 'Scene01' and the others, with rgb, forwardFlow and "
        "backwardFlow in Scene01/clone/frames"
    )
    require_folder(root, advice)
    directions = {("forwardFlow", "flow"): 1, ("backwardFlow", "backwardFlow"): -1}
    candidates = (
        _virtual_kitti_pair(root, flow, step)
        for (folder, word), step in directions.items()
        for flow in root.glob(
            f"Scene{digits(2)}/[!.]*/frames/{folder}/Camera_[01]/{word}_{digits(5)}.png"
        )
    )
    pairs = complete_pairs(candidates, root, advice)
    return _of_sides(pairs, sides, "/forwardFlow/Camera_0/", advice)


def _virtual_kitti_pair(root: Path, flow: Path, step: int) -> FlowPair:
    number, camera, frames = flow.stem[-5:], flow.parent.name, flow.parents[2]
    image1 = frames / "rgb" / camera / f"rgb_{number}.jpg"
    place = frames.parent.relative_to(root).as_posix()
    name = f"{place}/{flow.parents[1].name}/{camera}/{number}"
    return FlowPair(name, image1, neighbour(image1, step), flow, encoding="virtual-kitti")


def viper_pairs(root: Path, split: str = "train") -> list[FlowPair]:
    """List VIPER, "train" or "val", with frames as .png or .jpg.

    VIPER/                            <- root
        train/img/001/001_00001.png
        train/flow/001/001_00001.npz
    """
    check_name("split of VIPER", split, ("train", "val"))
    advice = f"point at the folder that holds '{split}' with 'img' and 'flow'"
    frames = require_folder(root / split / "img", advice)
    flows = require_folder(root / split / "flow", advice)
    scene, name = digits(3), f"{digits(3)}_{digits(5)}"
    suffix = ".png" if next(frames.glob(f"{scene}/{name}.png"), None) else ".jpg"
    candidates = (
        FlowPair(flow.stem, image1, neighbour(image1), flow, encoding="viper")
        for flow in flows.glob(f"{scene}/{name}.npz")
        for image1 in (frames / flow.parent.name / f"{flow.stem}{suffix}",)
    )
    return complete_pairs(candidates, root / split, advice)
