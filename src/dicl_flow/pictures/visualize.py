"""Pictures of flow, confidence and errors."""

from collections.abc import Sequence
from math import hypot

import cv2
import numpy as np

from ..errors import InputError
from ..files import Array, to_uint8

# The Middlebury wheel: six corner colours, and the number of steps from each to the next.
_CORNERS = ((255, 0, 0), (255, 255, 0), (0, 255, 0), (0, 255, 255), (0, 0, 255), (255, 0, 255))
_STEPS = (15, 6, 4, 11, 13, 6)
OUT_OF_RANGE = 0.75  # vectors beyond the maximum are darkened
CALMEST = 1.0  # px: shorter vectors do not get full colour, unless a maximum is given
MOST = 0.99  # share of vectors that have arrows of at most full length
_FULL = 3.0  # length of such an arrow, in distances between arrows
_LONGEST = 9.0  # of any arrow: one wild vector must not cross the whole picture
LONGEST_ARROW = _LONGEST / _FULL  # the same, in full arrows
_SHORTEST = 0.35  # of the shortest arrow that is no dot


def color_wheel() -> Array:
    """(55, 3) colours by direction, in [0, 1]."""
    sides = []
    for start, end, steps in zip(_CORNERS, _CORNERS[1:] + _CORNERS[:1], _STEPS, strict=True):
        # the published wheel rounds down on 255·i/steps, whether a channel rises or falls
        ramp = np.floor(255 * np.arange(steps) / steps)[:, None] / 255
        sides.append(np.array(start) + (np.array(end) - np.array(start)) * ramp)
    return np.concatenate(sides) / 255


def flow_to_rgb(flow: Array, maximum: float | None = None) -> Array:
    """(H, W, 2) flow -> (H, W, 3) uint8 RGB: hue is direction, saturation is speed.

    A vector of `maximum` px has full saturation (default: the longest vector, at least 1 px);
    longer ones are darker. Unknown flow (NaN, or beyond 1e9) is black.
    """
    flow = np.asarray(flow, np.float64)
    if flow.ndim != 3 or flow.shape[2] != 2:
        raise InputError(f"a flow must have the shape (height, width, 2), got {flow.shape}")
    if maximum is not None and not maximum > 0:
        raise InputError(f"the maximum must be positive, got {maximum}")
    known = known_flow(flow)
    flow = np.where(known[..., None], flow, 0)
    length = np.hypot(flow[..., 0], flow[..., 1])
    saturation = (length / (maximum or full_color(flow)))[..., None]
    hue = _hue(flow)
    color = np.where(saturation <= 1, 1 - saturation * (1 - hue), hue * OUT_OF_RANGE)
    return np.where(known[..., None], np.floor(255 * color), 0).astype(np.uint8)


def known_flow(flow: Array) -> Array:
    """(H, W) bool: where the flow is finite and not the .flo format's sign for unknown."""
    small = np.abs(flow) < 1e9  # also false for NaN
    return np.asarray(small[..., 0] & small[..., 1])


def full_color(flow: Array) -> float:
    """The length in px with full colour: the longest known vector of (H, W, 2), at least 1."""
    flow = np.where(known_flow(flow)[..., None], np.asarray(flow, np.float64), 0)
    return max(float(np.hypot(flow[..., 0], flow[..., 1]).max(initial=0)), CALMEST)


def full_arrow(flow: Array) -> float:
    """The length in px of an arrow of full length: most known vectors are shorter, at least 1."""
    known = np.asarray(flow, np.float64)[known_flow(flow)]
    lengths = np.hypot(known[:, 0], known[:, 1])
    return max(float(np.quantile(lengths, MOST)), CALMEST) if len(lengths) else CALMEST


def default_maximum(kind: str, flow: Array) -> float:
    """The length in px that a drawing of `DRAWINGS` shows as its full colour or full arrow."""
    return full_arrow(flow) if kind == "arrows" else full_color(flow)


def overlay(image: Array, flow: Array, maximum: float | None = None) -> Array:
    """Colour the frame by its flow: brightness from the frame, colour from the flow."""
    return tint(image, flow_to_rgb(flow, maximum))


def tint(image: Array, color: Array) -> Array:
    """Give `color` the brightness of `image`, (H, W, 3) uint8 both; black becomes dark."""
    weight = (0.3 + 0.7 / 255 * np.arange(256))[:, None]
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    return np.rint(color * weight[grey]).astype(np.uint8)


def draw_arrows(
    image: Array, flow: Array, spacing: int | None = None, maximum: float | None = None
) -> Array:
    """Draw the flow on the frame as arrows, one every `spacing` pixels.

    Their colours are those of `flow_to_rgb`, and their lengths are all to one scale, in which
    `maximum` px are 3 spacings (default: see `full_arrow`). What is too short for an arrow is a
    dot; what would be longer than 9 spacings ends there.
    """
    height, width = flow.shape[:2]
    spacing, maximum = spacing or arrow_spacing(flow.shape), maximum or full_arrow(flow)
    scale = arrow_scale(flow.shape, maximum, spacing)
    known = known_flow(flow)
    grid = (slice(spacing // 2, None, spacing),) * 2
    colors = flow_to_rgb(flow[grid], maximum)
    canvas = np.ascontiguousarray(image // 2 + 32)  # less contrast: arrows stand out
    for row, y in enumerate(range(spacing // 2, height, spacing)):
        for column, x in enumerate(range(spacing // 2, width, spacing)):
            if known[y, x]:
                draw_arrow(canvas, (x, y), flow[y, x] * scale, colors[row, column], spacing)
    return canvas


def arrow_spacing(shape: Sequence[int]) -> int:
    """Return the distance between arrows in px, for a picture of this shape."""
    return 8 + round(max(shape[:2]) / 44)


def arrow_scale(shape: Sequence[int], maximum: float, spacing: int | None = None) -> float:
    """Return how many times as long as the motion `draw_arrows` draws the arrows."""
    return _FULL * (spacing or arrow_spacing(shape)) / maximum


def draw_arrow(
    canvas: Array, start: Sequence[int], vector: Array, color: Array, spacing: int
) -> None:
    """Draw an arrow into the picture, or a dot if the vector is short; in px, x first."""
    bits = 4  # sub-pixel positions for OpenCV
    rgb, (dx, dy) = tuple(int(channel) for channel in color), (float(side) for side in vector)
    share = min(1.0, _LONGEST * spacing / max(hypot(dx, dy), 1e-9))
    dx, dy = dx * share, dy * share
    length = hypot(dx, dy)
    tail, tip = (
        (round(x * (1 << bits)), round(y * (1 << bits)))
        for x, y in (start, (start[0] + dx, start[1] + dy))
    )
    if length < _SHORTEST * spacing:
        radius = round(max(0.5, spacing / 20) * (1 << bits))
        cv2.circle(canvas, tail, radius, rgb, cv2.FILLED, cv2.LINE_AA, bits)
    else:
        stroke, head = max(1, round(spacing / 18)), min(0.45, 0.4 * spacing / length)
        cv2.arrowedLine(canvas, tail, tip, rgb, stroke, cv2.LINE_AA, bits, tipLength=head)


def confidence_to_grey(confidence: Array) -> Array:
    """(H, W) in [0, 1] -> (H, W) uint8, white is confident."""
    return np.rint(np.clip(confidence, 0, 1) * 255).astype(np.uint8)


def error_to_rgb(error: Array, valid: Array, maximum: float) -> Array:
    """(H, W) error -> (H, W, 3) uint8 RGB: black is none, bright is `maximum`, grey is unknown."""
    level = np.rint(255 * np.clip(np.where(valid, error, 0) / maximum, 0, 1)).astype(np.uint8)
    color = cv2.applyColorMap(level, cv2.COLORMAP_INFERNO)[..., ::-1]
    return np.where(valid[..., None], color, np.uint8(90))


def flow_statistics(flow: Array) -> dict[str, float]:
    """What `dicl-flow show` prints of a flow, in pixels."""
    known = known_flow(flow)
    if not known.any():
        raise InputError("the flow is unknown everywhere")
    vectors = flow[known].astype(np.float64)
    length = np.hypot(vectors[:, 0], vectors[:, 1])
    median, almost_all = np.percentile(length, [50, 95])
    return {
        "known": float(known.mean()),
        "mean_length": float(length.mean()),
        "median_length": float(median),
        "p95_length": float(almost_all),
        "max_length": float(length.max()),
        "mean_x": float(vectors[:, 0].mean()),
        "mean_y": float(vectors[:, 1].mean()),
        "min_x": float(vectors[:, 0].min()),
        "max_x": float(vectors[:, 0].max()),
        "min_y": float(vectors[:, 1].min()),
        "max_y": float(vectors[:, 1].max()),
    }


def _hue(flow: Array) -> Array:
    wheel = color_wheel()
    angle = np.arctan2(-flow[..., 1], -flow[..., 0]) / np.pi
    position = (angle + 1) / 2 * (len(wheel) - 1)
    below = np.floor(position).astype(int)
    fraction = (position - below)[..., None]
    above = (below + 1) % len(wheel)
    return (1 - fraction) * wheel[below] + fraction * wheel[above]


DRAWINGS = ("image", "overlay", "arrows", "confidence", "occlusion")


def draw_estimate(
    kind: str,
    image1: Array,
    flow: Array,
    confidence: Array,
    occlusion: Array | None = None,
    maximum: float | None = None,
) -> Array:
    """Draw one of `DRAWINGS`, (H, W) or (H, W, 3) uint8; `maximum` px get full colour."""
    draw = {
        "image": lambda: flow_to_rgb(flow, maximum),
        "overlay": lambda: overlay(to_uint8(image1), flow, maximum),
        "arrows": lambda: draw_arrows(to_uint8(image1), flow, maximum=maximum),
        "confidence": lambda: confidence_to_grey(confidence),
        "occlusion": lambda: confidence_to_grey(np.asarray(occlusion)),
    }
    return draw[kind]()
