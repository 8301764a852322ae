"""Scenes to measure on: settings, photographs and a seed that no recipe trains with."""

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
    """Return what renders held-out scenes of `size` (height, width), by their numbers.

    Without a folder of photographs the textures are computed; without a config the scenes are
    those of the default settings.
    """
    textures = load_textures(photos, torch.device(device), seed)
    return Renderer(config or RenderConfig(), size, textures, device, seed)
