"""Every command that takes frames, on the pairs of a folder, for `campaigns.numbers`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .killable import RECIPE

Words = list[Any]


class Pair:
    """a_img1.png, a_img2.png and a_flow.flo in a folder; outputs go to another one."""

    def __init__(self, folder: Path, weights: Path, size: tuple[int, int]) -> None:
        self.folder, self.out, self.size = folder, folder.with_name("out"), size
        self.first, self.second = folder / "a_img1.png", folder / "a_img2.png"
        self.truth = folder / "a_flow.flo"
        self.how = ["-w", weights, "--device", "cpu", "--precision", "fp32"]


def _flow(pair: Pair) -> Words:
    pictures = ("image", "overlay", "arrows", "confidence", "occlusion")
    drawn = [word for name in pictures for word in (f"--{name}", pair.out / f"{name}.png")]
    files = ["-o", pair.out / "flow.flo", "--backward", pair.out / "back.npz"]
    return ["flow", pair.first, pair.second, *files, *drawn, *pair.how, "--json"]


def _video(pair: Pair) -> Words:
    outputs = [word for name in ("a.mp4", "b.npy", "c") for word in ("-o", pair.out / name)]
    more = ["--stats", pair.out / "d.csv", "--backward", "--occlusion", "--show", "wheel,arrows"]
    return ["video", pair.folder, *outputs, *more, *pair.how, "--json"]


def _interpolate(pair: Pair) -> Words:
    words = ["interpolate", pair.first, pair.second, "-o", pair.out / "between.png"]
    return [*words, *pair.how, "--json"]


def _slow_motion(pair: Pair) -> Words:
    words = ["interpolate", pair.folder, "--factor", 2, "-o", pair.out / "slow.mp4"]
    return [*words, *pair.how, "--json"]


def _warp(pair: Pair) -> Words:
    words = ["warp", pair.second, pair.truth, "-o", pair.out / "warped.png"]
    return [*words, "--json"]


def _show(pair: Pair) -> Words:
    return ["show", pair.truth, "-o", pair.out / "flow.png", "--json"]


def _bulk(pair: Pair) -> Words:
    more = ["--table", "csv", "--fields", "npy", "--grid", 4, "--flows", "npz", "--occlusion"]
    words = ["bulk", pair.folder, "-o", pair.out / "bulk", *more]
    return [*words, *pair.how, "--json"]


def _eval(pair: Pair) -> Words:
    drawn = ["--worst", 1, pair.out / "worst", "--baseline", "dis"]
    words = ["eval", "-d", f"pairs={pair.folder}", "-o", pair.out / "scores.json", *drawn]
    return [*words, *pair.how, "--json"]


def _check(pair: Pair) -> Words:
    return ["data", "check", "pairs", pair.folder, "-o", pair.out / "sheet.png", "--json"]


def _pixel(pair: Pair) -> Words:
    place = [side // 2 for side in reversed(pair.size)]
    return [*["analyze", "pixel", *place], *_analyzed(pair)]


def _peaks(pair: Pair) -> Words:
    return ["analyze", "peaks", *_analyzed(pair)]


def _levels(pair: Pair) -> Words:
    return ["analyze", "levels", *_analyzed(pair)]


def _analyzed(pair: Pair) -> Words:
    given = ["--pair", pair.first, pair.second, "--truth", pair.truth, "-o", pair.out / "analysis"]
    return [*given, *pair.how, "--json"]


def _compare(pair: Pair) -> Words:
    weights, *how = pair.how[1:]
    given = ["--pair", pair.first, pair.second, "--truth", pair.truth, "-o", pair.out / "sheets"]
    return ["analyze", "compare", weights, "dis", *given, *how, "--json"]


def _train(pair: Pair) -> Words:
    recipe = pair.folder.with_name("recipe.toml")
    recipe.write_text(RECIPE.replace("steps = 5", "steps = 2"))
    words = ["train", recipe, "-d", f"pairs={pair.folder}", "-o", pair.out / "run"]
    return [*words, "--device", "cpu", "--json", "--quiet"]  # without lines of progress


COMMANDS: dict[str, Callable[[Pair], Words]] = {
    "flow": _flow,
    "video": _video,
    "interpolate": _interpolate,
    "interpolate a clip": _slow_motion,
    "warp": _warp,
    "show": _show,
    "bulk": _bulk,
    "eval": _eval,
    "data check": _check,
    "analyze pixel": _pixel,
    "analyze peaks": _peaks,
    "analyze levels": _levels,
    "analyze compare": _compare,
    "train": _train,
}
