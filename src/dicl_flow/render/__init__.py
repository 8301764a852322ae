"""Training scenes made on the device: layers of photographs that move, with exact flow."""

from .renderer import RenderedBatch, Renderer
from .statistics import MotionStatistics
from .textures import TextureAtlas, list_photos, load_textures

__all__ = [
    "MotionStatistics",
    "RenderedBatch",
    "Renderer",
    "TextureAtlas",
    "list_photos",
    "load_textures",
]
