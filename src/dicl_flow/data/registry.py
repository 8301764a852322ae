"""Data sets by the names that recipes and the command line use."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import InputError, unknown_name
from .datasets import (
    chairs_pairs,
    hd1k_pairs,
    kitti_pairs,
    middlebury_pairs,
    sintel_pairs,
    stereo_pairs,
    things_pairs,
)
from .own import own_pairs
from .sample import FlowPair
from .video_frames import is_video


@dataclass(frozen=True)
class DataSet:
    """A data set known by name."""

    label: str
    """Its name in tables."""
    list_pairs: Callable[[Path], list[FlowPair]]
    """Lists the pairs below a root folder."""
    metrics: tuple[str, ...] = ("epe",)
    """What its benchmark reports."""


_KITTI = ("epe_images", "fl_all")
_TRAIN = DataSet("FlyingChairs (train)", partial(chairs_pairs, split="train"))

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
    "kitti12": DataSet("KITTI-12 (occ)", partial(kitti_pairs, year=2012, truth="occ"), _KITTI),
    "kitti12:noc": DataSet("KITTI-12 (noc)", partial(kitti_pairs, year=2012, truth="noc"), _KITTI),
    "kitti15": DataSet("KITTI-15 (occ)", partial(kitti_pairs, year=2015, truth="occ"), _KITTI),
    "kitti15:noc": DataSet("KITTI-15 (noc)", partial(kitti_pairs, year=2015, truth="noc"), _KITTI),
    "hd1k": DataSet("HD1K", hd1k_pairs),
    "middlebury": DataSet("Middlebury", middlebury_pairs),
    "stereo": DataSet("Middlebury stereo", stereo_pairs),
    "pairs": DataSet("own pairs", own_pairs),
}


def data_set(name: str) -> DataSet:
    """Return the data set of a name such as "sintel-clean" or "kitti15:noc"."""
    if name not in DATA_SETS:
        raise unknown_name("data set", name, DATA_SETS)
    return DATA_SETS[name]


def list_pairs(name: str, root: Path, *, needs_truth: bool = False) -> list[FlowPair]:
    """List the pairs of a data set; with `needs_truth`, a pair without truth is an error."""
    entry = data_set(name)
    if needs_truth and name == "pairs" and is_video(root):  # before its frames are extracted
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
        raise InputError(f"a data set is NAME=PATH, such as kitti15=data/KITTI, got {text!r}")
    if name != also:
        data_set(name)
    return name, Path(path).expanduser()  # shells do not expand ~ after =
