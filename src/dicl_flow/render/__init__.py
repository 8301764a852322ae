"""Renders training scenes on the device, with exact flow: layers of photographs, solid worlds."""
# What is imported here is for other packages.
# ruff: noqa: F401
# mypy: implicit-reexport

from typing import TYPE_CHECKING

from ..lazy import on_first_use
from .photos import is_held_out, list_photos

if TYPE_CHECKING:
    from .camera import augment_batch
    from .domains import DOMAINS, domain_clip
    from .fluid import FluidClip
    from .renderer import (
        Clip,
        MotionStatistics,
        RenderedBatch,
        Renderer,
        held_out_renderer,
        tracking_clip,
    )
    from .textures import TextureAtlas, load_textures
else:
    _names = {
        "camera": "augment_batch",
        "domains": "DOMAINS domain_clip",
        "fluid": "FluidClip",
        "renderer": "Clip MotionStatistics RenderedBatch Renderer held_out_renderer tracking_clip",
        "textures": "TextureAtlas load_textures",
    }
    __getattr__ = on_first_use(__name__, _names)
