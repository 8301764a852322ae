"""Renders training scenes on the device: moving layers of photographs, with exact flow."""

from typing import TYPE_CHECKING

from ..lazy import on_first_use
from .photos import is_held_out, list_photos

if TYPE_CHECKING:
    from .held_out import held_out_renderer
    from .motion_statistics import MotionStatistics
    from .renderer import RenderedBatch, Renderer
    from .textures import TextureAtlas, load_textures
    from .variation import augment_batch
else:
    __getattr__ = on_first_use(
        __name__,
        {
            "held_out_renderer": "held_out",
            "RenderedBatch": "renderer",
            "Renderer": "renderer",
            "MotionStatistics": "motion_statistics",
            "TextureAtlas": "textures",
            "load_textures": "textures",
            "augment_batch": "variation",
        },
    )

__all__ = [
    "MotionStatistics",
    "RenderedBatch",
    "Renderer",
    "TextureAtlas",
    "augment_batch",
    "held_out_renderer",
    "is_held_out",
    "list_photos",
    "load_textures",
]
