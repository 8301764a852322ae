"""Scenes to measure on, drawn with a seed of their own from the photographs that are given."""

from pathlib import Path

import torch

from ..config import RenderConfig
from .renderer import Renderer
from .textures import load_textures

_SEED = 1000  # no packaged weights were trained with it


def held_out_renderer(
    photos: Path | None,
    size: tuple[int, int],
    device: torch.device | str,
    *,
    config: RenderConfig | None = None,
    seed: int = _SEED,
) -> Renderer:
    """Return a renderer of held-out scenes of `size` (height, width).

    Without a folder of photographs the textures are procedural; without a config the scenes have
    the default settings.
    """
    textures = load_textures(photos, torch.device(device), seed)
    return Renderer(config or RenderConfig(), size, textures, device, seed)
