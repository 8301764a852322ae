"""Your own pairs: a folder of frames and flow files, a manifest, or a video."""

import csv
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path

from ..errors import InputError, unknown_name
from ..files import FLOW_SUFFIXES, flow_suffix
from .frames import VIDEO_SUFFIXES, complete_pairs, image_files, is_video, listed
from .sample import FlowPair
from .timing import extract_frames

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_COLUMNS = ("image1", "image2", "flow", "occlusion")
_MANIFEST = "pairs"  # the name of a manifest that stands for its folder
_MASK = "_occ"  # after the name of a frame or a pair, as `dicl-flow render` writes it
_RowFiles = tuple[Path, Path, Path | None, Path | None]  # frames, truth and mask


def own_pairs(root: Path, start: str = "") -> list[FlowPair]:
    """List your own pairs; `root` is a folder, a manifest or a video.

    A **folder** holds one clip (frame_1.png, frame_1.flo, frame_2.png …, each frame paired with the
    next), or separate pairs (chair_img1.png, chair_img2.png, chair_flow.flo). The flow from frame X
    is X.flo or X_flow.flo (also .pfm, .npz, .npy, .flo5, .exr), next to the frames or in a folder
    `flow`, which may also hold .png as in KITTI (read as sparse). If there are flow files, frames
    without one are left out; if there are none, all pairs are listed without truth. Images named
    X_flow are pictures of flow, not frames. X_occ.png next to the frames is white where a pixel is
    hidden.

    A **manifest** (.csv, or .tsv with tabs) has a header with the columns image1, image2 and,
    optionally, flow and occlusion. Paths are relative to the manifest; every file must exist. A
    folder with a pairs.csv or pairs.tsv is that manifest, whatever else is in it. Pairs are named
    by what tells their first frames apart: of scenes/Grove3/frame1.png and
    scenes/Venus/frame1.png, Grove3 and Venus.

    A **video** has no ground truth; its frames are extracted into a temporary folder.

    `start` chooses the pairs whose names start with it.
    """
    pairs = _all_pairs(root)
    chosen = [pair for pair in pairs if pair.name.startswith(start)]
    if not chosen:
        raise InputError(f"no pair in {root} has a name that starts with {start!r}")
    return chosen


def _all_pairs(root: Path) -> list[FlowPair]:
    if root.is_dir():
        manifests = [root / f"{_MANIFEST}{suffix}" for suffix in _DELIMITERS]
        found = _unique({file: _MANIFEST for file in manifests if file.is_file()})
        return _manifest_pairs(found[_MANIFEST]) if found else _folder_pairs(root)
    if not root.exists():
        raise FileNotFoundError(f"no folder, manifest or video {root}")
    if root.suffix.lower() in _DELIMITERS:
        return _manifest_pairs(root)
    if is_video(root):
        return _folder_pairs(extract_frames(root), of=root)
    raise InputError(
        f"{root} is neither a folder of frames nor a manifest ({', '.join(_DELIMITERS)}) "
        f"nor a video ({', '.join(VIDEO_SUFFIXES)})"
    )


def _folder_pairs(folder: Path, of: Path | None = None) -> list[FlowPair]:
    images = image_files(folder.iterdir())
    frames = _unique({f: f.stem for f in images if not f.stem.endswith(("_flow", _MASK))})
    truths = _truths(folder)
    candidates = [
        _pair(name, image1, image2, truths.get(name), folder / f"{name}{_MASK}.png")
        for name, image1, image2 in _frame_pairs(frames)
        if name in truths or not truths
    ]
    advice = (
        "at least two frames are needed; the flow file of a frame X.png is X.flo; a manifest must "
        "be called pairs.csv"
    )
    return complete_pairs(candidates, of or folder, advice)


def _truths(folder: Path) -> dict[str, Path]:
    subfolder = folder / "flow"
    files = listed(folder.iterdir(), [suffix for suffix in FLOW_SUFFIXES if suffix != ".png"])
    files += listed(subfolder.iterdir(), FLOW_SUFFIXES) if subfolder.is_dir() else []
    names = {file: file.name[: -len(flow_suffix(file))] for file in files}
    return _unique({file: name.removesuffix("_flow") for file, name in names.items()})


def _unique(names: dict[Path, str]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for file, name in names.items():
        if name in files:
            raise InputError(f"{files[name]} and {file} are both for {name!r}; keep one of them")
        files[name] = file
    return files


def _frame_pairs(frames: dict[str, Path]) -> list[tuple[str, Path, Path]]:
    """Return (name, frame 1, frame 2): by _img1 and _img2 where there are such names."""
    named = [name.removesuffix("_img1") for name in frames if name.endswith("_img1")]
    if named:
        whole = [name for name in named if f"{name}_img2" in frames]
        return [(name, frames[f"{name}_img1"], frames[f"{name}_img2"]) for name in whole]
    return [(one, frames[one], frames[two]) for one, two in pairwise(frames)]


def _pair(name: str, image1: Path, image2: Path, truth: Path | None, mask: Path | None) -> FlowPair:
    sparse = truth is not None and truth.suffix.lower() == ".png"
    return FlowPair(name, image1, image2, truth, sparse=sparse, occlusion=mask)


def _manifest_pairs(manifest: Path) -> list[FlowPair]:
    rows: list[_RowFiles] = []
    try:
        with manifest.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, delimiter=_DELIMITERS[manifest.suffix.lower()])
            _check_header(manifest, reader.fieldnames or ())
            for row in reader:
                where = f"{manifest}, line {reader.line_num}"
                rows.append(_row_files(manifest.parent, row, where))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{manifest} is not a table in UTF-8: {error}") from None
    if not rows:
        raise InputError(f"{manifest} lists no pairs below its header")
    return [_pair(name, *files) for name, files in zip(_row_names(rows), rows, strict=True)]


def _check_header(manifest: Path, columns: Sequence[str]) -> None:
    for column in columns:
        if column not in _COLUMNS:
            raise InputError(f"{manifest}: {unknown_name('column', column, _COLUMNS)}")
        if columns.count(column) > 1:
            raise InputError(f"{manifest} has two columns {column}")
    for column in _COLUMNS[:2]:
        if column not in columns:
            raise InputError(f"{manifest} lacks the column {column!r} in its first line")


def _row_files(folder: Path, row: Mapping[str, str], where: str) -> _RowFiles:
    """Return the frames, the truth and the mask of a row; all files must exist."""
    if None in row or None in row.values():
        raise InputError(f"{where}: the number of entries differs from that of the columns")
    files = {column: folder / entry for column, entry in row.items() if entry}
    for column in _COLUMNS[:2]:
        if column not in files:
            raise InputError(f"{where}: {column} is empty")
    for file in files.values():
        if not os.path.isfile(file):  # noqa: PTH113 - Path.is_file fails for very long names
            raise InputError(f"{where}: no file {file}")
    return files["image1"], files["image2"], files.get("flow"), files.get("occlusion")


def _row_names(rows: Sequence[_RowFiles]) -> list[str]:
    """Name rows by their first frames; where these are the same, by the second, then by number."""
    first = _told_apart([files[0] for files in rows])
    count = Counter(first)
    names = [
        name if count[name] == 1 else f"{name}-{image2.stem}"
        for name, (_, image2, *_) in zip(first, rows, strict=True)
    ]
    while repeated := {name for name, count in Counter(names).items() if count > 1}:
        names = [
            f"{name}-{number:05d}" if name in repeated else name
            for number, name in enumerate(names, start=1)
        ]
    return names


def _common_folder(paths: Sequence[str]) -> str:
    """Return the folder that all share; "" for two drives of Windows."""
    try:
        return os.path.commonpath({*map(os.path.dirname, paths)})
    except ValueError:
        return ""


def _told_apart(files: Sequence[Path]) -> list[str]:
    """Return paths without the folders in front and the words at the end that all share."""
    paths = [os.path.splitext(os.path.abspath(file))[0] for file in files]  # noqa: PTH100, PTH122
    if len({*paths}) == 1:
        return [Path(path).name.removesuffix("_img1") or Path(path).name for path in paths]
    folder = _common_folder(paths)
    texts = [path[len(folder) :].replace(os.sep, "/").lstrip("/") for path in paths]
    texts = texts if folder else [re.sub("^([A-Za-z]):/", r"\1/", text) for text in texts]
    ends = zip(*(reversed(re.split("(?=[/_-])", text)) for text in texts), strict=False)
    shared = [words[0] for words in takewhile(lambda words: len({*words}) == 1, ends)]
    names = [text.removesuffix("".join(reversed(shared))) for text in texts]
    return names if all(name.rpartition("/")[2] for name in names) else texts
