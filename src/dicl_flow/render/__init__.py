"""Renders training scenes on the device, with exact flow: layers of photographs, solid worlds."""
# What is imported here is for other packages.
# ruff: noqa: F401
# mypy: implicit-reexport

from typing import TYPE_CHECKING

from ..lazy import on_first_use
from .photos import is_held_out, list_photos

if TYPE_CHECKING:
    from .clips import Clip
    from .renderer import MotionStatistics, RenderedBatch, Renderer, held_out_renderer
    from .textures import TextureAtlas, load_textures
    from .variation import augment_batch
else:
    __getattr__ = on_first_use(
        __name__,
        {
            "Clip": "clips",
            "held_out_renderer": "renderer",
            "RenderedBatch": "renderer",
            "Renderer": "renderer",
            "MotionStatistics": "renderer",
            "TextureAtlas": "textures",
            "load_textures": "textures",
            "augment_batch": "variation",
        },
    )
