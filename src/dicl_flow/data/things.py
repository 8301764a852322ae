"""FlyingThings3D: training pairs of the subset or the full data set."""

from collections.abc import Iterator
from pathlib import Path

from ..errors import InputError, unknown_name
from ..files import read_bytes
from .listing import complete_pairs, digits, neighbour, require_folder
from .sample import FlowPair

UNUSED_FILE = "all_unused_files.txt"
_PASSES = ("clean", "final")
_VIEWS = {"left": "L", "right": "R"}
_DIRECTIONS = {"into_future": 1, "into_past": -1}  # frame 2 is the next or the previous frame
_SPLITS = ("train", "val", "authors")
_HARD = {
    ("left", "into_future"): "4117 3149 1203 3147 3666 6337 6336 7126 4118",
    ("right", "into_future"): "3148 4117 2890 3149 1203 3666 6337 6336 4118",
    ("left", "into_past"): "4237 4705 4045 4346 161 931 121 10822 4117 6023 5034 5054 162 53 5055 "
    "3147 4876 163 6878",
    ("right", "into_past"): "3148 4705 161 121 4117 160 5034 5054 162 53 5055 3147 1549 163 6336 "
    "1648 6878",
}
"""The flows of the subset that the authors do not train on (after VCN), by view and direction."""


def things_pairs(root: Path, render_pass: str = "clean", split: str = "train") -> list[FlowPair]:
    """List FlyingThings3D: left and right views, forward and backward in time.

    `split` is "train"; "authors", the same without the hard flows that the authors of DICL-Flow
    leave out, which are known by their numbers in the subset, so the full data set is refused; or
    "val", on which they validate: left view, forward in time, of `val` (of TEST in the full one).

    The subset (of the "DispNet/FlowNet2.0 dataset subsets"), or the full data set::

        FlyingThings3D_subset/            <- root
            train/
                image_clean/left/0000000.png            (image_final for "final")
                flow/left/into_future/0000000.flo

        FlyingThings3D/                   <- root
            all_unused_files.txt          frames that the authors exclude; their pairs are left out
            frames_cleanpass/TRAIN/A/0000/left/0006.png     (frames_finalpass for "final")
            optical_flow/TRAIN/A/0000/into_future/left/OpticalFlowIntoFuture_0006_L.pfm

    The subset does not contain the excluded frames and has its own numbers, so the list of unused
    files is not read there. Without the list, all pairs of the full data set are listed.
    """
    if render_pass not in _PASSES:
        raise unknown_name("pass of FlyingThings3D", render_pass, _PASSES)
    if split not in _SPLITS:
        raise unknown_name("split of FlyingThings3D", split, _SPLITS)
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
        candidates = (pair for pair in candidates if not _is_hard(pair))
    advice = (
        f"for things-{render_pass}, point at the folder that holds '{folder}' with "
        f"'image_{render_pass}' and 'flow' (the subset), or 'frames_{render_pass}pass' and "
        f"'optical_flow' (the full set)"
    )
    return complete_pairs(candidates, require_folder(images, advice), advice)


def _subset(flows: Path, images: Path) -> Iterator[FlowPair]:
    for view in _VIEWS:
        for direction, step in _DIRECTIONS.items():
            for flow in (flows / view / direction).glob(f"{digits(7)}.flo"):
                frame = images / view / f"{flow.stem}.png"
                name = f"{view}/{direction}/{flow.stem}"
                yield FlowPair(name, frame, neighbour(frame, step), flow)


def _is_hard(pair: FlowPair) -> bool:
    view, direction, number = pair.name.split("/")
    return str(int(number)) in _HARD[view, direction].split()


def _full(root: Path, images: Path, split: str) -> Iterator[FlowPair]:
    unused = _read_unused(root / UNUSED_FILE, images)
    for scene in (root / "optical_flow" / split).glob(f"[ABC]/{digits(4)}"):
        place = scene.relative_to(root / "optical_flow")
        for view, letter in _VIEWS.items():
            for direction, step in _DIRECTIONS.items():
                for flow in (scene / direction / view).glob(f"Optical*_{digits(4)}_{letter}.pfm"):
                    frame = images / place / view / f"{flow.stem[-6:-2]}.png"
                    name = f"{(place / view).as_posix()}/{direction}/{frame.stem}"
                    pair = FlowPair(name, frame, neighbour(frame, step), flow)
                    if not {pair.image1, pair.image2} & unused:
                        yield pair


def _read_unused(path: Path, images: Path) -> set[Path]:
    """Return the excluded frames; the list has lines such as TRAIN/A/0003/left/0007.png."""
    if not path.is_file():
        return set()
    return {images / line for line in read_bytes(path).decode("utf-8", "replace").split()}
