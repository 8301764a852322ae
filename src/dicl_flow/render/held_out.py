"""Held-out scenes for measuring: with a seed that no recipe trains with."""

from pathlib import Path

import torch

from ..config import RenderConfig
from .renderer import Renderer
from .textures import load_textures

HELD_OUT_SEED = 1000


def held_out_renderer(
    photos: Path | None,
    size: tuple[int, int],
    device: torch.device | str,
    *,
    config: RenderConfig | None = None,
    seed: int = HELD_OUT_SEED,
) -> Renderer:
    """Return a renderer of held-out scenes of `size` (height, width).

    Without a folder of photographs the textures are procedural; without a config the scenes have
    the default settings.
    """
    textures = load_textures(photos, torch.device(device), seed)
    return Renderer(config or RenderConfig(), size, textures, device, seed)
