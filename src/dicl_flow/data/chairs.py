"""FlyingChairs: training and validation pairs."""

from pathlib import Path

from ..errors import InputError, unknown_name
from ..files import read_bytes
from .listing import complete_pairs, digits, require_folder
from .sample import FlowPair

SPLIT_FILE = "FlyingChairs_train_val.txt"
_SPLIT_MARKS = {"train": "1", "val": "2"}
_ADVICE = "point at FlyingChairs_release, the folder that holds 'data' with NNNNN_img1.ppm files"


def chairs_pairs(root: Path, split: str = "train") -> list[FlowPair]:
    """List FlyingChairs: the official split "train" (22,232 pairs) or "val" (640), or "all".

    ::

        FlyingChairs_release/             <- root
            FlyingChairs_train_val.txt    a separate download; not needed for "all"
            data/
                00001_img1.ppm  00001_img2.ppm  00001_flow.flo
                …
    """
    if split not in (*_SPLIT_MARKS, "all"):
        raise unknown_name("split of FlyingChairs", split, (*_SPLIT_MARKS, "all"))
    data = require_folder(root / "data", _ADVICE)
    names = [flow.name.split("_")[0] for flow in data.glob(f"{digits(5)}_flow.flo")]
    candidates = [
        FlowPair(
            name, data / f"{name}_img1.ppm", data / f"{name}_img2.ppm", data / f"{name}_flow.flo"
        )
        for name in names
    ]
    pairs = complete_pairs(candidates, data, _ADVICE)
    return pairs if split == "all" else _of_split(pairs, root / SPLIT_FILE, split)


def _of_split(pairs: list[FlowPair], path: Path, split: str) -> list[FlowPair]:
    """Keep the pairs of a split; line N of the file is for pair N."""
    marks = dict(enumerate(_read_marks(path), start=1))
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


def _read_marks(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(
            f"no split file {path}; download {SPLIT_FILE} from the page of FlyingChairs, "
            f"or use chairs:all for every pair"
        )
    text = read_bytes(path).decode("ascii", "replace").rstrip()
    marks = [line.strip() for line in text.splitlines()]
    for line, mark in enumerate(marks, start=1):
        if mark not in _SPLIT_MARKS.values():
            raise InputError(f"{path}, line {line}: expected 1 (train) or 2 (val), got {mark!r}")
    return marks
