"""Training scenes made on the device: layers of photographs that move, with exact flow."""

from typing import TYPE_CHECKING

from ..lazy import on_first_use
from .photos import list_photos

if TYPE_CHECKING:
    from .motion_statistics import MotionStatistics
    from .renderer import RenderedBatch, Renderer
    from .textures import TextureAtlas, load_textures
else:
    __getattr__ = on_first_use(
        __name__,
        {
            "RenderedBatch": "renderer",
            "Renderer": "renderer",
            "MotionStatistics": "motion_statistics",
            "TextureAtlas": "textures",
            "load_textures": "textures",
        },
    )

__all__ = [
    "MotionStatistics",
    "RenderedBatch",
    "Renderer",
    "TextureAtlas",
    "list_photos",
    "load_textures",
]
