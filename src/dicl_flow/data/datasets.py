"""Public data sets: a listing function each, with the layout that it expects, and their names."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ..errors import InputError, check_name
from ..files import read_bytes
from .frames import complete_pairs, digits, is_video, neighbour, require_folder
from .own import own_pairs
from .sample import FlowPair
from .stereo import (
    KITTI_DOWNLOADS,
    kitti_stereo_pairs,
    middlebury_stereo_pairs,
    sintel_stereo_pairs,
)
from .worlds import (
    DIRECTIONS,
    PASSES,
    driving_pairs,
    monkaa_pairs,
    scene_flow_pairs,
    spring_pairs,
    tartanair_pairs,
    viper_pairs,
    virtual_kitti_pairs,
)

SPLIT_FILE = "FlyingChairs_train_val.txt"
_SPLIT_MARKS = {"train": "1", "val": "2"}
_CHAIRS_ADVICE = (
    "point at FlyingChairs_release, the folder that holds 'data' with NNNNN_img1.ppm files"
)


def chairs_pairs(root: Path, split: str = "train") -> list[FlowPair]:
    """List FlyingChairs: the official split "train" (22,232 pairs) or "val" (640), or "all".

    FlyingChairs_release/             <- root
        FlyingChairs_train_val.txt    a separate download; not needed for "all"
        data/00001_img1.ppm  00001_img2.ppm  00001_flow.flo …
    """
    check_name("split of FlyingChairs", split, (*_SPLIT_MARKS, "all"))
    data = require_folder(root / "data", _CHAIRS_ADVICE)
    flows = {flow.name.split("_")[0]: flow for flow in data.glob(f"{digits(5)}_flow.flo")}
    candidates = (
        FlowPair(name, data / f"{name}_img1.ppm", data / f"{name}_img2.ppm", flow)
        for name, flow in flows.items()
    )
    pairs = complete_pairs(candidates, data, _CHAIRS_ADVICE)
    return pairs if split == "all" else _of_split(pairs, root / SPLIT_FILE, split)


def _of_split(pairs: list[FlowPair], path: Path, split: str) -> list[FlowPair]:
    """Keep the pairs of a split; line N of the file is for pair N."""
    if not path.is_file():
        raise FileNotFoundError(
            f"no split file {path}; download {SPLIT_FILE} from the page of FlyingChairs, "
            f"or use chairs:all for every pair"
        )
    lines = read_bytes(path).decode("ascii", "replace").rstrip().splitlines()
    marks = {number: line.strip() for number, line in enumerate(lines, start=1)}
    for number, mark in marks.items():
        if mark not in _SPLIT_MARKS.values():
            raise InputError(f"{path}, line {number}: expected 1 (train) or 2 (val), got {mark!r}")
    unmarked = [pair.name for pair in pairs if int(pair.name) not in marks]
    if unmarked:
        raise InputError(
            f"{path} has {len(marks)} lines, but none for pair {unmarked[0]}; "
            f"download it again, or use chairs:all for every pair"
        )
    chosen = [pair for pair in pairs if marks[int(pair.name)] == _SPLIT_MARKS[split]]
    if not chosen:
        raise InputError(f"{path} assigns none of the {len(pairs)} pairs on disk to '{split}'")
    return chosen


_HARD = {
    "left/into_future": "4117 3149 1203 3147 3666 6337 6336 7126 4118",
    "right/into_future": "3148 4117 2890 3149 1203 3666 6337 6336 4118",
    "left/into_past": "4237 4705 4045 4346 161 931 121 10822 4117 6023 5034 5054 162 53 5055 "
    "3147 4876 163 6878",
    "right/into_past": "3148 4705 161 121 4117 160 5034 5054 162 53 5055 3147 1549 163 6336 "
    "1648 6878",
}
"""The flows of the subset that the authors do not train on (after VCN), by view and direction."""


def things_pairs(root: Path, render_pass: str = "clean", split: str = "train") -> list[FlowPair]:
    """List FlyingThings3D: left and right views, forward and backward in time.

    `split` is "train"; "authors", the same without the hard flows that the authors of DICL-Flow
    leave out (of the subset only, by whose numbers they are known); or "val", on which they
    validate: left view, forward in time, of `val` (of TEST in the full one). The subset (of the
    "DispNet/FlowNet2.0 dataset subsets"), or the full data set::

        FlyingThings3D_subset/            <- root
            train/
                image_clean/left/0000000.png            (image_final for "final")
                flow/left/into_future/0000000.flo

        FlyingThings3D/                   <- root
            all_unused_files.txt          frames whose pairs are left out (optional)
            frames_cleanpass/TRAIN/A/0000/left/0006.png     (frames_finalpass for "final")
            optical_flow/TRAIN/A/0000/into_future/left/OpticalFlowIntoFuture_0006_L.pfm

    """
    check_name("pass of FlyingThings3D", render_pass, PASSES)
    check_name("split of FlyingThings3D", split, ("train", "val", "authors"))
    folder = "val" if split == "val" else "train"
    if any((root / part / "flow").is_dir() for part in ("train", "val")):
        images = root / folder / f"image_{render_pass}"
        candidates = _subset(root / folder / "flow", images)
    elif split == "authors" and (root / "optical_flow").is_dir():
        raise InputError(
            f"{root} is the full FlyingThings3D, but the hard flows that the authors leave out are "
            f"known by their numbers in the subset: download FlyingThings3D_subset ('DispNet/"
            f"FlowNet2.0 dataset subsets': image_{render_pass} and flow); to train on all flows of "
            f"the full data set, name things-{render_pass} in the recipe's data"
        )
    else:
        images = root / f"frames_{render_pass}pass"
        candidates = _full(root, images, "TEST" if split == "val" else "TRAIN")
    if split == "val":
        candidates = (pair for pair in candidates if "left/into_future/" in pair.name)
    if split == "authors":
        hard = {f"{view}/{n:0>7}" for view, numbers in _HARD.items() for n in numbers.split()}
        candidates = (pair for pair in candidates if pair.name not in hard)
    advice = (
        f"for things-{render_pass}, point at the folder that holds '{folder}' with "
        f"'image_{render_pass}' and 'flow' (the subset), or 'frames_{render_pass}pass' and "
        f"'optical_flow' (the full set)"
    )
    return complete_pairs(candidates, require_folder(images, advice), advice)


def _subset(flows: Path, images: Path) -> Iterator[FlowPair]:
    for view in ("left", "right"):
        for direction, step in DIRECTIONS.items():
            for flow in (flows / view / direction).glob(f"{digits(7)}.flo"):
                frame = images / view / f"{flow.stem}.png"
                name = f"{view}/{direction}/{flow.stem}"
                yield FlowPair(name, frame, neighbour(frame, step), flow)


def _full(root: Path, images: Path, split: str) -> Iterator[FlowPair]:
    listed = root / "all_unused_files.txt"  # lines such as TRAIN/A/0003/left/0007.png
    text = read_bytes(listed).decode("utf-8", "replace") if listed.is_file() else ""
    unused = [images / line for line in text.split()]
    return scene_flow_pairs(root, f"{split}/[ABC]/{digits(4)}", images, unused)


_SINTEL_ADVICE = (
    "point at the folder that holds 'training' and 'test' (the unpacked MPI-Sintel-complete.zip)"
)
_SINTEL_FRAME = f"frame_{digits(4)}.png"


def sintel_pairs(root: Path, render_pass: str = "clean") -> list[FlowPair]:
    """List the training pairs of MPI-Sintel, "clean" or "final" (1,041 each).

    All pixels count, as in the authors' training and evaluation, unless `FlowPair.valid_only`. ::

        MPI-Sintel-complete/training/
            clean/alley_1/frame_0001.png              (or final)
            flow/alley_1/frame_0001.flo
            occlusions/alley_1/frame_0001.png         white where hidden in frame 2 (optional)
            invalid/alley_1/frame_0001.png            white where the truth is unreliable (optional)
    """
    return _sintel_pairs(root / "training", render_pass, "flow")


def sintel_test_pairs(root: Path, render_pass: str = "clean") -> list[FlowPair]:
    """List the test pairs of MPI-Sintel, in `root`/test/clean or final, which have no truth."""
    return _sintel_pairs(root / "test", render_pass)


def _sintel_pairs(split: Path, render_pass: str, truth: str = "") -> list[FlowPair]:
    check_name("pass of MPI-Sintel", render_pass, PASSES)
    frames = require_folder(split / render_pass, _SINTEL_ADVICE)
    flows = require_folder(split / truth, _SINTEL_ADVICE) if truth else None
    files = {f"{file.parent.name}/{file.stem}": file for file in frames.glob(f"*/{_SINTEL_FRAME}")}
    candidates = (
        FlowPair(
            name,  # SCENE/frame_0001, as the benchmark calls it
            frame,
            neighbour(frame),
            flows / f"{name}.flo" if flows else None,
            occlusion=split / "occlusions" / f"{name}.png",
            invalid=split / "invalid" / f"{name}.png",
        )
        for name, frame in files.items()
    )
    with_truth = f"{truth}/SCENE/frame_0001.flo with " if truth else ""
    advice = f"{with_truth}frame_0001.png and frame_0002.png in {render_pass}/SCENE"
    return complete_pairs(candidates, split, f"a pair is {advice}")


_FRAME_FOLDERS = {2012: ("colored_0", "image_0"), 2015: ("image_2",)}
_FRAME = re.compile(r"([0-9]{6})_1[01]")


def kitti_pairs(root: Path, year: int = 2015, truth: str = "occ") -> list[FlowPair]:
    """List the training pairs of KITTI 2012 (194) or 2015 (200); the truth is sparse.

    `truth` is "occ", all pixels measured by the laser, or "noc", those visible in both frames.
    With "occ", flow_noc (if present) shows which pixels are occluded. ::

        data_scene_flow/training/         2012: data_stereo_flow
            image_2/000000_10.png  000000_11.png            2012: colored_0, or grey: image_0
            flow_occ/000000_10.png
            flow_noc/000000_10.png
    """
    check_name("truth of KITTI", truth, ("occ", "noc"))
    return _kitti_pairs(root / "training", year, truth)


def kitti_test_pairs(root: Path, year: int = 2015) -> list[FlowPair]:
    """List the test pairs of KITTI, in `root`/testing, which have no truth."""
    return _kitti_pairs(root / "testing", year)


def _kitti_pairs(split: Path, year: int, truth: str = "") -> list[FlowPair]:
    folders = [split / name for name in _FRAME_FOLDERS[year]]
    advice = (
        f"point at the folder that holds '{split.name}' (the unpacked {KITTI_DOWNLOADS[year]}) "
        f"with frames NNNNNN_10.png and NNNNNN_11.png in {' or '.join(_FRAME_FOLDERS[year])}"
    )
    if truth:
        advice += f"; kitti{year % 100} reads flow_occ, kitti{year % 100}:noc reads flow_noc"
    frames = next((folder for folder in folders if folder.is_dir()), folders[0])
    files = require_folder(frames, advice).glob(f"{digits(6)}_10.png")
    flows = require_folder(split / f"flow_{truth}", advice) if truth else None
    candidates = (
        FlowPair(
            frame.stem,
            frame,
            neighbour(frame),
            flows / frame.name if flows else None,
            sparse=bool(truth),
            visible_truth=split / "flow_noc" / frame.name if truth == "occ" else None,
        )
        for frame in files
    )
    return complete_pairs(candidates, split, advice)


def kitti_scenes(frames: Sequence[Path]) -> tuple[str, ...]:
    """Return the scene of each frame if all are named as in KITTI, NNNNNN_10 and _11; or ()."""
    matches = [_FRAME.fullmatch(frame.stem) for frame in frames]
    scenes = tuple(match[1] for match in matches if match is not None)
    return scenes if len(scenes) == len(frames) else ()


def hd1k_pairs(root: Path) -> list[FlowPair]:
    """List HD1K: real driving scenes at 2560x1080; the truth is sparse.

    HD1K/                             <- root
        hd1k_input/image_2/000000_0000.png          sequence_frame
        hd1k_flow_gt/flow_occ/000000_0000.png
    """
    advice = "point at the folder that holds 'hd1k_input' and 'hd1k_flow_gt', both unpacked"
    frames = require_folder(root / "hd1k_input" / "image_2", advice)
    flows = require_folder(root / "hd1k_flow_gt" / "flow_occ", advice)
    candidates = (
        FlowPair(flow.stem, frames / flow.name, neighbour(frames / flow.name), flow, sparse=True)
        for flow in flows.glob(f"{digits(6)}_{digits(4)}.png")
    )
    return complete_pairs(candidates, root, advice)


def middlebury_pairs(root: Path) -> list[FlowPair]:
    """List the Middlebury flow pairs with public ground truth (8).

    Middlebury/                       <- root
        other-data/RubberWhale/frame10.png  frame11.png
        other-gt-flow/RubberWhale/flow10.flo
    """
    advice = "point at the folder that holds 'other-data' and 'other-gt-flow'"
    frames = require_folder(root / "other-data", advice)
    flows = require_folder(root / "other-gt-flow", advice)
    truths = {frames / flow.parent.name: flow for flow in flows.glob("*/flow10.flo")}
    candidates = (
        FlowPair(scene.name, scene / "frame10.png", scene / "frame11.png", truth)
        for scene, truth in truths.items()
    )
    return complete_pairs(candidates, root, advice)


def demo_pairs() -> list[FlowPair]:
    """Return a pair of a film, and a rendered one with ground truth; see CREDITS.md there."""
    demo = Path(__file__).parents[1] / "demo"
    bunny = FlowPair("bunny", demo / "bunny_img1.jpg", demo / "bunny_img2.jpg")
    frames = demo / "rendered_img1.png", demo / "rendered_img2.png"
    return [bunny, FlowPair("rendered", *frames, demo / "rendered_flow.png")]


Metrics: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class DataSet:
    """A data set known by name."""

    label: str
    """Its name in tables."""
    list_pairs: Callable[[Path], list[FlowPair]]
    """Lists the pairs below a root folder."""
    metrics: Metrics = ("epe",)
    """What its benchmark reports."""


def _sides(
    name: str, label: str, pairs: Callable[..., list[FlowPair]], metrics: Metrics = ("epe",)
) -> dict[str, DataSet]:
    """A data set with both eyes and directions, and NAME:left-forward."""
    some = partial(pairs, sides="left-forward")
    return {
        name: DataSet(label, pairs, metrics),
        f"{name}:left-forward": DataSet(f"{label} (left, forward)", some, metrics),
    }


def _kitti(
    name: str, label: str, pairs: Callable[..., list[FlowPair]], year: int
) -> dict[str, DataSet]:
    """A KITTI with all pixels, and NAME:noc."""
    return {
        variant: DataSet(f"{label} ({truth})", partial(pairs, year=year, truth=truth), _KITTI)
        for variant, truth in ((name, "occ"), (f"{name}:noc", "noc"))
    }


_KITTI = ("epe_images", "fl_all")
_SPRING = ("over_1px", "epe", "fl_all", "wauc")
_VIPER = ("wauc",)
_TRAIN = DataSet("FlyingChairs (train)", chairs_pairs)

DATA_SETS: dict[str, DataSet] = {
    "chairs": _TRAIN,  # the name that recipes use
    "chairs:train": _TRAIN,
    "chairs:val": DataSet("FlyingChairs (val)", partial(chairs_pairs, split="val")),
    "chairs:all": DataSet("FlyingChairs (all)", partial(chairs_pairs, split="all")),
    "things-clean": DataSet("FlyingThings3D clean", partial(things_pairs, render_pass="clean")),
    "things-final": DataSet("FlyingThings3D final", partial(things_pairs, render_pass="final")),
    "things-clean:val": DataSet("FlyingThings3D clean (val)", partial(things_pairs, split="val")),
    "things-clean:authors": DataSet(
        "FlyingThings3D clean (authors)", partial(things_pairs, split="authors")
    ),
    "things-final:val": DataSet(
        "FlyingThings3D final (val)", partial(things_pairs, render_pass="final", split="val")
    ),
    "sintel-clean": DataSet("Sintel clean", partial(sintel_pairs, render_pass="clean")),
    "sintel-final": DataSet("Sintel final", partial(sintel_pairs, render_pass="final")),
    **_kitti("kitti12", "KITTI-12", kitti_pairs, 2012),
    **_kitti("kitti15", "KITTI-15", kitti_pairs, 2015),
    "hd1k": DataSet("HD1K", hd1k_pairs),
    "middlebury": DataSet("Middlebury", middlebury_pairs),
    "stereo": DataSet("Middlebury stereo", middlebury_stereo_pairs),
    **_kitti("kitti12-stereo", "KITTI-12 stereo", kitti_stereo_pairs, 2012),
    **_kitti("kitti15-stereo", "KITTI-15 stereo", kitti_stereo_pairs, 2015),
    "sintel-stereo-clean": DataSet("Sintel stereo clean", sintel_stereo_pairs),
    "sintel-stereo-final": DataSet(
        "Sintel stereo final", partial(sintel_stereo_pairs, render_pass="final")
    ),
    **_sides("spring", "Spring", spring_pairs, _SPRING),
    "tartanair": DataSet("TartanAir", tartanair_pairs),
    **_sides("vkitti2", "Virtual KITTI 2", virtual_kitti_pairs),
    "viper": DataSet("VIPER", viper_pairs, _VIPER),
    "viper:val": DataSet("VIPER (val)", partial(viper_pairs, split="val"), _VIPER),
    **_sides("monkaa-clean", "Monkaa clean", monkaa_pairs),
    **_sides("monkaa-final", "Monkaa final", partial(monkaa_pairs, render_pass="final")),
    **_sides("driving-clean", "Driving clean", driving_pairs),
    **_sides("driving-final", "Driving final", partial(driving_pairs, render_pass="final")),
    "pairs": DataSet("own pairs", own_pairs),
}


def data_set(name: str) -> DataSet:
    """Return the data set of a name such as "sintel-clean" or "kitti15:noc".

    "pairs:STREET" is those own pairs whose names start with "STREET".
    """
    start = name.removeprefix("pairs:")
    if start not in ("", name):
        return DataSet(start, partial(own_pairs, start=start))
    check_name("data set", name, DATA_SETS)
    return DATA_SETS[name]


def list_pairs(name: str, root: Path, *, needs_truth: bool = False) -> list[FlowPair]:
    """List the pairs of a data set; with `needs_truth`, a pair without truth is an error."""
    entry = data_set(name)
    if (
        needs_truth and name.partition(":")[0] == "pairs" and is_video(root)
    ):  # before its frames are extracted
        raise InputError(f"{root}: a video has no ground truth, which is needed here")
    pairs = entry.list_pairs(root)
    bare = next((pair for pair in pairs if pair.truth is None), None)
    if needs_truth and bare is not None:
        raise InputError(f"{root}: the pair {bare.name} has no flow file, which is needed here")
    return pairs


def parse_data_argument(text: str, *, also: str = "") -> tuple[str, Path]:
    """Split NAME=PATH, as given to `--data`; the name is a data set, or the one in `also`."""
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise InputError(f"a data set must be NAME=PATH, such as kitti15=data/KITTI, got {text!r}")
    if name != also:
        data_set(name)
    return name, Path(path).expanduser()  # shells do not expand ~ after =
