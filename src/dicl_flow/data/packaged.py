"""The pairs that come with the package, for the demo and for analyses without data."""

from pathlib import Path

from .sample import FlowPair

_FOLDER = Path(__file__).parents[1] / "demo"


def demo_pairs() -> list[FlowPair]:
    """Return a pair of a film, and a rendered one with ground truth; see CREDITS.md there."""
    bunny = FlowPair("bunny", _FOLDER / "bunny_img1.jpg", _FOLDER / "bunny_img2.jpg")
    rendered = FlowPair(
        "rendered",
        _FOLDER / "rendered_img1.png",
        _FOLDER / "rendered_img2.png",
        _FOLDER / "rendered_flow.png",
    )
    return [bunny, rendered]
