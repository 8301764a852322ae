"""The estimator on frames whose motion is known, with the packaged weights, for `numbers`."""

from collections.abc import Callable
from functools import cache
from math import cos, pi, sin
from pathlib import Path
from typing import Any

import numpy as np

from dicl_flow import FlowEstimator, FlowResult, load
from dicl_flow.data.datasets import demo_pairs
from dicl_flow.files import Array, read_image, to_uint8, write_files
from dicl_flow.pictures.figures import draw_figure, encode_figure

from .inputs import texture
from .report import Options, Part

SIDE = 256  # px, of all frames here
LENGTHS = (0, 1, 2, 4, 8, 12, 16, 20, 24, 32, 40)  # px
DIRECTIONS = 8
WINDOWS = ((0, 0), (256, 0), (0, 128), (256, 128), (128, 64), (69, 65))
"""Where the frames of a film are looked at when they are turned, (x, y) in px."""
STILL = 0.05  # px: the mean flow that equal frames may have


@cache
def _load(device: str) -> FlowEstimator:
    return load(device=device, precision="fp32")


def _estimator(options: Options) -> FlowEstimator:
    """The packaged weights."""
    return _load(options.more["--device"])


def film(x: int = 0, y: int = 0) -> Array:
    """(SIDE, SIDE, 3): the middle of a film's frame, seen through a window at x, y."""
    image = to_uint8(read_image(demo_pairs()[0].image1))
    top, left = ((length - SIDE) // 2 for length in image.shape[:2])
    return image[top + y : top + y + SIDE, left + x : left + x + SIDE]


def moving_film(x: int, y: int) -> tuple[Array, Array]:
    """Two frames of a film, seen through a window whose corner is at x, y."""
    pair = demo_pairs()[0]
    first, second = (to_uint8(read_image(path)) for path in (pair.image1, pair.image2))
    window = np.s_[y : y + SIDE, x : x + SIDE]
    return first[window], second[window]


def _described(result: FlowResult) -> dict[str, float]:
    mean, confidence = float(lengths(result.flow).mean()), float(result.confidence.mean())
    return {"mean_flow_px": round(mean, 4), "mean_confidence": round(confidence, 4)}


def _check_finite(part: Part, name: str, result: FlowResult) -> None:
    if np.isfinite(result.flow).all() and np.isfinite(result.confidence).all():
        part.outcomes["finite"] += 1
    else:
        part.failures.append(f"{name}: not finite")


def still(options: Options) -> Part:
    """Equal frames have no flow; that of frames that differ in one pixel is reported."""
    part = Part()
    for kind, image in (("film", film()), ("texture", texture(SIDE, SIDE))):
        other = image.copy()
        other[SIDE // 2, SIDE // 2, 0] ^= 1
        part.measured[kind] = found = _described(_estimator(options)(image, image))
        part.measured[f"{kind}, but for a pixel"] = _described(_estimator(options)(image, other))
        if found["mean_flow_px"] > STILL:
            part.failures.append(f"{kind}: {found['mean_flow_px']} px")
        else:
            part.outcomes["still"] += 1
    return part


def without_information(options: Options) -> Part:
    """Blank frames, noise, hard cuts, and a frame that was turned by 90 degrees: reported."""
    part, dice = Part(), np.random.default_rng(options.seed)
    noise = dice.integers(0, 256, (2, SIDE, SIDE, 3), np.uint8)
    faint = dice.integers(120, 124, (2, SIDE, SIDE, 3), np.uint8)
    grey = {name: np.full((SIDE, SIDE, 3), g, np.uint8) for name, g in _GREYS.items()}
    pairs = {
        **{name: (image, image) for name, image in grey.items()},
        "black, then white": (grey["black"], grey["white"]),
        "noise": (noise[0], noise[1]),
        "faint noise": (faint[0], faint[1]),
        "a hard cut": (film(), texture(SIDE, SIDE)),
        "turned by 90 degrees": (film(), np.ascontiguousarray(np.rot90(film()))),
    }
    for name, pair in pairs.items():
        result = _estimator(options)(*pair)
        part.measured[name] = _described(result)
        _check_finite(part, name, result)
    return part


_GREYS = {"constant": 97, "black": 0, "white": 255}


def turned(options: Options) -> Part:
    """Mirrored and rotated frames have mirrored and rotated flow, up to a measured difference."""
    part, estimate, largest = Part(), _estimator(options), dict.fromkeys(TURNS, (0.0, 0.0))
    for x, y in WINDOWS[: options.count]:
        frames = moving_film(x, y)
        flow = estimate(*frames).flow
        part.measured[f"mean_flow_px at {x}, {y}"] = round(float(lengths(flow).mean()), 2)
        for name in TURNS:
            found = turned_difference(estimate, frames, flow, name)
            pair = float(np.median(found)), float(found.mean())
            largest[name] = max(largest[name], pair)
            part.outcomes["compared"] += 1
    for name, (median, mean) in largest.items():
        part.measured[name] = {"median_px": round(median, 3), "mean_px": round(mean, 3)}
    return part


def turned_difference(
    estimate: FlowEstimator, frames: tuple[Array, Array], flow: Array, name: str
) -> Array:
    """Return how far the flow of turned frames, turned back, is from `flow`."""
    turn, back = TURNS[name]
    return lengths(back(estimate(*map(turn, frames)).flow) - flow)


def lengths(flow: Array) -> Array:
    """Return the length of each vector."""
    return np.hypot(flow[..., 0], flow[..., 1])


def _quarter(flow: Array) -> Array:
    """Undo a quarter turn to the left, of places and of vectors."""
    there = np.rot90(flow, -1)
    return np.stack([-there[..., 1], there[..., 0]], -1)


TURNS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "mirrored left to right": (lambda i: i[:, ::-1], lambda f: f[:, ::-1] * (-1, 1)),
    "mirrored top to bottom": (lambda i: i[::-1], lambda f: f[::-1] * (1, -1)),
    "turned by 180 degrees": (lambda i: i[::-1, ::-1], lambda f: -f[::-1, ::-1]),
    "turned by 90 degrees": (np.rot90, _quarter),
}
"""How frames are turned, and how the flow of such frames is turned back."""


def shifts(options: Options) -> Part:
    """Shift a frame as a whole: the error by the length of the shift."""
    part, path = Part(), options.more["--figure"]
    figure = draw_figure(6, 3.2) if path else None  # fails before the work if it has to
    errors: dict[int, list[float]] = {length: [] for length in LENGTHS[: options.count]}
    for length, found in errors.items():
        for number in range(DIRECTIONS if length else 1):
            angle = 2 * pi * number / DIRECTIONS
            x, y = round(length * cos(angle)), round(length * sin(angle))
            result = _estimator(options)(film(), film(-x, -y))
            _check_finite(part, f"{x}, {y}", result)
            inside = result.flow[max(0, -y) : SIDE - max(0, y), max(0, -x) : SIDE - max(0, x)]
            found.append(float(lengths(inside - (x, y)).mean()))
    part.measured["mean_error_px"] = {n: round(float(np.mean(e)), 3) for n, e in errors.items()}
    part.measured["worst_direction_px"] = {n: round(max(e), 3) for n, e in errors.items()}
    if figure is not None:
        _draw(figure, errors)
        write_files({Path(path): encode_figure(figure, "svg")})
    return part


def _draw(figure: Any, errors: dict[int, list[float]]) -> None:
    axes = figure.subplots()
    lines = {
        "mean": [np.mean(e) for e in errors.values()],
        "worst": list(map(max, errors.values())),
    }
    for label, line in lines.items():
        axes.plot(list(errors), line, marker="o", label=f"{label} of {DIRECTIONS} directions")
    axes.set(xlabel="shift of the whole frame, px", ylabel="mean error, px", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()


PARTS: dict[str, Callable[[Options], Part]] = {
    "still": still,
    "without information": without_information,
    "turned": turned,
    "shifts": shifts,
}
