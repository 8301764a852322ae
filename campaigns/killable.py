"""The commands that `campaigns.kills` kills: their words, and what must survive."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dicl_flow import LevelConfig, ModelConfig, calibrate
from dicl_flow.files import encode_image, write_files, write_flow
from dicl_flow.render import load_textures
from dicl_flow.training.run_folder import RunFolder, load_checkpoint
from dicl_flow.video import PictureVideo, SlowMotion
from dicl_flow.weights import read_weights, resolve

from .inputs import MOTION, moving_frames, small_weights, write_images

FRAMES, SIZE = 12, (16, 24)
VIDEOS = (".mp4", ".mov", ".mkv", ".webm", ".gif")
RECIPE = """
name = "small"
steps = 5
batch = 2
workers = 0
save_every = 1
log_every = 1
picture_every = 0
validate_every = 2
validation = ["pairs"]
data = [{ name = "pairs" }]
[model]
matcher = "dot"
levels = [{ stride = 4, radius = 1, context = [[8, 1]] }]
[augment]
crop = [16, 32]
[loss]
refined = [1.0]
matched = [0.8]
[optimizer]
average = 0.9
clip = 1.0
"""
TINY = ModelConfig(levels=(LevelConfig(4, 1),), matcher="dot", projection=False, context=False)
Contents = dict[str, str]
"""By file: what it holds, as a digest."""


@dataclass(frozen=True)
class Case:
    """A command whose output is below a folder."""

    name: str
    words: Callable[[Path], list[object]]
    progress: Callable[[Path], int] = lambda out: 0
    old: Callable[[Path], None] | None = None
    """Writes an older output that must stay until it is replaced."""
    wrong: Callable[[Path, Contents], list[str]] = lambda out, expected: []
    """Returns what a kill must not have left."""
    prepare: Callable[[], None] = lambda: None
    """Runs in the child, before the command."""

    def contents(self, out: Path) -> Contents:
        """Return what all files hold, except those that differ from run to run."""
        return {name: _digest(path) for name, path in _files(out) if "tfevents" not in name}


def _files(out: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(out.rglob("*")):
        yield str(path.relative_to(out)), path


def _digest(path: Path) -> str:
    if path.is_dir():
        return "folder"
    readers = {".ckpt": _tensors, ".jsonl": _lines, **dict.fromkeys(VIDEOS, _pictures)}
    read = readers.get(path.suffix, Path.read_bytes)
    return hashlib.sha256(read(path)).hexdigest()


def _tensors(path: Path) -> bytes:
    """All that a checkpoint holds; the file also says which equal texts are one object."""

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.numpy().tobytes()
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value

    return repr(plain(load_checkpoint(path))).encode()


def _lines(path: Path) -> bytes:
    """The lines of a log, without their times."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return repr([{**line, "pairs_per_second": 0} for line in lines]).encode()


def _pictures(path: Path) -> bytes:
    """Frames and times of a video, whose file may have a random identity."""
    import av

    with av.open(str(path)) as container:
        frames = [(f.time, f.to_ndarray(format="rgb24").tobytes()) for f in container.decode()]
    return repr(frames).encode()


def cases(work: Path) -> Iterator[Case]:
    """Make the inputs; yield the commands."""
    weights = small_weights(work / "tiny.safetensors", TINY)
    frames = write_images(work / "frames", moving_frames(FRAMES, *SIZE))
    how = ("-w", weights, "--device", "cpu", "--precision", "fp32", "--quiet")
    yield _training(work)
    yield from _videos(frames, how)
    scenes = ("-d", "rendered=procedural", "-n", 1, "--size", "64x64", "--threshold", 40)
    words = ("calibrate", *scenes, *how)
    yield _one_file("calibrate", "weights.safetensors", words, _simple_scenes)
    for suffix in ("pt2", "onnx"):
        words = ("export", "-w", weights, "--size", "32x32", "--quiet")
        yield _one_file(f"export {suffix}", f"flow.{suffix}", words)
    yield _one_file("convert", "w.safetensors", ("convert", resolve(None), "--quiet"))


def _training(work: Path) -> Case:
    recipe, pairs = work / "small.toml", work / "pairs"
    recipe.write_text(RECIPE)
    pairs.mkdir()
    for number in range(2):
        for place, frame in enumerate(moving_frames(2, 24, 48, number), start=1):
            path = pairs / f"p{number}_img{place}.png"
            write_files({path: encode_image(path, frame)})
        write_flow(pairs / f"p{number}_flow.flo", np.full((24, 48, 2), MOTION, np.float32))
    words = ("train", recipe, "-d", f"pairs={pairs}", "--device", "cpu", "--quiet")

    def full(out: Path) -> list[object]:
        folder = RunFolder(out / "run")
        return [*words, "-o", folder.path, *(["--resume"] if folder.checkpoint.exists() else [])]

    def step(out: Path) -> int:
        folder = RunFolder(out / "run")
        return load_checkpoint(folder.checkpoint)["step"] if folder.checkpoint.exists() else 0

    def unreadable(out: Path, expected: Contents) -> list[str]:
        for path in (out / "run").glob("*.safetensors"):
            read_weights(path)  # raises an error
        return []

    return Case("train", full, step, wrong=unreadable)


def _videos(frames: Path, how: tuple[object, ...]) -> Iterator[Case]:
    outputs = {
        "video to a folder": (("-o", "flows"), ("--backward", "--occlusion")),
        "video to an array": (("-o", "flow.npy"), ("--backward",)),
        **{f"video to {s}": (("-o", f"flow{s}"), ("--show", "frame,wheel")) for s in VIDEOS},
        "video to all": (("-o", "a.mp4", "-o", "b.npy", "-o", "c", "--stats", "d.csv"), ()),
    }
    for name, (places, more) in outputs.items():
        yield _video(name, ("video", frames, *more, *how), places)
    slow = ("interpolate", frames, "--factor", 2, *how)
    for name in ("slow.mp4", "slow"):
        yield _video(f"interpolate to {name}", slow, ("-o", name))


def _video(name: str, words: tuple[object, ...], places: tuple[str, ...]) -> Case:
    def full(out: Path) -> list[object]:
        return [*words, *(p if p.startswith("-") else out / p for p in places)]

    files = [place for place in places if Path(place).suffix]

    def done(out: Path) -> int:
        state = out / f"{places[1]}.parts" / "state.json"
        return json.loads(state.read_text()).get("done", 0) if state.exists() else 0

    def short_pieces() -> None:
        PictureVideo.piece, SlowMotion.piece = 4, 2

    old = partial(_write_old, files) if files else None
    return Case(name, full, done, old, _not_whole, short_pieces)


def _one_file(
    name: str,
    output: str,
    words: tuple[object, ...],
    prepare: Callable[[], None] = lambda: None,
) -> Case:
    def full(out: Path) -> list[object]:
        return [*words, "-o", out / output]

    return Case(name, full, old=partial(_write_old, [output]), wrong=_not_whole, prepare=prepare)


def _simple_scenes() -> None:
    """Small textures and few shapes, which take a tenth of a second instead of four."""
    *others, _ = load_textures.__defaults__ or ()
    load_textures.__defaults__ = (*others, (48, 64))
    settings = calibrate.__globals__
    simple = replace(settings["CALIBRATION_SCENES"], num_shapes=8, shape_side=32)
    settings["CALIBRATION_SCENES"] = simple


def _write_old(names: list[str], out: Path) -> None:
    for name in names:
        (out / name).write_bytes(b"older")


def _not_whole(out: Path, expected: Contents) -> list[str]:
    """Finished files are those of the run that was left alone, or older ones."""
    whole = {
        name: path
        for name, path in _files(out)
        if path.is_file() and ".parts" not in name and not path.name.startswith(".")
    }
    return [
        f"{name} is neither old nor new"
        for name, path in whole.items()
        if path.read_bytes() != b"older" and _digest(path) != expected[name]
    ]
