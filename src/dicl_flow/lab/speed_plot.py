"""The figure of `dicl-flow bench`."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ..pictures.figures import draw_figure, encode_figure
from .speed_cases import Result


def encode_plot(results: Sequence[Result]) -> bytes:
    """Draw time and memory against pixels, as a PNG, on linear axes."""
    figure = draw_figure(10, 4)
    time_axes, memory_axes = figure.subplots(1, 2)
    for label, chosen in sorted(_by_path(results).items()):
        pixels = [r.case.width * r.case.height * r.case.batch / 1e6 for r in chosen]
        time_axes.plot(pixels, [1000 * r.seconds for r in chosen], "o-", label=label)
        known = [
            (x, r.peak_bytes / 2**30) for x, r in zip(pixels, chosen, strict=True) if r.peak_bytes
        ]
        memory_axes.plot(*zip(*known, strict=True) if known else ([], []), "o-", label=label)
    _label(time_axes, "ms")
    _label(memory_axes, "GiB at the peak")
    return encode_figure(figure, dpi=120)


def _by_path(results: Sequence[Result]) -> dict[str, list[Result]]:
    groups = defaultdict(list)
    for result in sorted(results, key=lambda r: r.case.width * r.case.height * r.case.batch):
        groups[f"{result.backend} {result.precision}"].append(result)
    return groups


def _label(axes: Any, quantity: str) -> None:
    axes.set(xlabel="megapixels", ylabel=quantity)
    axes.set_xlim(0)
    axes.set_ylim(0)
    axes.grid(alpha=0.3)
    axes.legend()
