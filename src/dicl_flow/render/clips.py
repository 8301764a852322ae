"""Clips of solid scenes: frames, flow and occlusion between any two of them, and tracks."""

import torch
from torch import Tensor

from ..config import RenderConfig, find_place
from ..errors import InputError
from .camera import draw_fog, photograph
from .compositing import Frames
from .dice import Dice
from .shapes import shape_bank
from .solid import casting
from .solid.draws import Draws
from .solid.shading import shade
from .solid.world import Textures, draw_world, lay_out
from .textures import TextureAtlas

_LONGEST = 10_000  # frames


class Clip:
    """One world at the times 0, 1, 2 …; every frame is seen once, on first use of what needs it."""

    def __init__(
        self,
        config: RenderConfig,
        size: tuple[int, int],
        textures: TextureAtlas,
        kind: str,
        num_frames: int,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        """Draw a world of a `kind` of place; `size` is (height, width)."""
        find_place(kind)
        if not 1 <= num_frames <= _LONGEST:
            raise InputError(f"a clip must have 1 to {_LONGEST} frames, got {num_frames}")
        self.config, self.size, self.textures = config, size, textures
        self.num_frames, self.seed = num_frames, seed
        numbers = Textures(textures.num_photos, len(textures), config.procedural_share)
        world = draw_world(config, Draws(f"clip {seed}"), size, numbers, kind)
        times = [float(time) for time in range(num_frames)]
        layout = lay_out([world], times, size).to(device)
        shapes = shape_bank(torch.device(device), 0, config.num_shapes, config.shape_side)
        self.view = casting.View(layout, shapes, size)

    @torch.no_grad()
    def frames(self) -> Tensor:
        """(T, 3, H, W) in [0, 1], with the effects of a camera."""
        view, dice = self.view, Dice(self.view.shapes.device, self.seed)
        fog = draw_fog(self.config, dice, 1)
        color, depth = shade(view, self.textures.mips, fog)
        flows = [self.flow(time, time + 1) for time in range(self.num_frames - 1)]
        flow = torch.stack([*flows, flows[-1]]) if flows else torch.zeros_like(color[:, :2])
        frames = Frames(color, flow, depth, view.layer)
        return photograph(frames, self.config, dice, self.num_frames)

    def flow(self, start: int, end: int) -> Tensor:
        """(2, H, W) from one frame to another; 1e5 px and more for what is behind the camera."""
        return self.view.flow(start, end)[0]

    def valid(self, flow: Tensor) -> Tensor:
        """(H, W) bool: flow that is not longer than the settings allow."""
        return flow.norm(dim=0) <= self.config.max_flow

    def occluded(self, start: int, end: int) -> Tensor:
        """(H, W) bool: seen in one frame, hidden in or outside another."""
        return self.view.occluded(start, end)[0]

    def tracks(self, num_points: int) -> tuple[Tensor, Tensor]:
        """(P, T, 2) positions in px, and (P, T) whether hidden, of points of random frames."""
        draws, view = Draws(f"tracks {self.seed}"), self.view
        most = (self.num_frames, *self.size)
        found = [[draws.randrange(side) for side in most] for _ in range(num_points)]
        time, row, column = torch.tensor(found, device=view.shapes.device).T
        body, q = view.sight.body[time, row, column], view.points[time, :, row, column].T
        places, hidden = [], []
        for end in range(self.num_frames):
            moved = torch.empty_like(q)
            for start in time.unique().tolist():
                seen = time == start
                moved[:, seen] = casting.move(view.layout, 0, body[seen], q[:, seen], start, end)
            place = casting.project(moved, view.layout.scene[end, 0, 12], self.size)
            gone = casting.hidden(view.layout, 0, end, body, moved, view.shapes)
            places.append(place.T)
            hidden.append(gone | casting.is_outside(place, self.size))
        return torch.stack(places, 1), torch.stack(hidden, 1)
