"""Effects on whole frames: those of a real camera, and the augmentation of rendered pairs.

Frames are stacked, frame 1 of all scenes first. The frames of a scene, two or those of a clip, have
the same fog, blur, light, noise and compression, except for what changes between them.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import AugmentConfig, RenderConfig
from ..data import FlowBatch
from ..data.augmentation import LUMA
from ..ops import sample_clamped, sampling_grid
from .scene import Frames, has_kernels, upsample
from .shapes import Dice

_DARKEST = 1e-4  # before a power
_NUM_TAPS = 11
_LONGEST_BLUR = 32.0  # px: in longer blur the single taps would be visible
_BLOCK = 8
_Effect = Callable[[Tensor, Tensor, Tensor], Tensor]  # frames, their numbers, strengths -> frames


def recolor(
    image: Tensor, matrix: Tensor, offset: Tensor, exposure: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Apply a matrix (B, 3, 3) and an offset (B,) to the colours of frames (B, 3, H, W).

    The result is in [0, 1]. `exposure` is light (B, 1, h, w), factors on a coarse grid that are
    applied before, and gamma (B,), exponents that are applied after.
    """
    lowest = _DARKEST if exposure else 0.0
    if has_kernels(image.device):
        from .kernels import recolor as recolor_at_once  # imports Triton

        return recolor_at_once(image, matrix, offset, exposure, lowest)
    if exposure:
        image = image * upsample(exposure[0], (image.shape[2], image.shape[3]))
    red, green, blue = image.split(1, 1)
    from_red, from_green, from_blue = matrix[..., None, None].unbind(2)  # (B, 3, 1, 1)
    mixed = torch.addcmul(offset[:, None, None, None], from_red, red)
    mixed = mixed.addcmul_(from_green, green).addcmul_(from_blue, blue).clamp_(lowest, 1)
    return mixed.pow_(exposure[1][:, None, None, None]) if exposure else mixed


def draw_fog(config: RenderConfig, dice: Dice, batch: int) -> Tensor:
    """(B, 4): the share of fog in front of the background, and its colour."""
    share = dice.strength(batch, config.fog)[:, None]
    gray = dice.uniform(batch, 1, low=0.5)
    return torch.cat([share, gray + dice.uniform(batch, 3, low=-0.1, high=0.1)], 1)


def photograph(frames: Frames, config: RenderConfig, dice: Dice, times: int = 2) -> Tensor:
    """Return the frames of all `times` with the effects of a camera, (TB, 3, H, W) in [0, 1]."""
    shot = _Shot(dice, len(frames.color) // times, times)
    color = shot.on_some(frames.color, config.motion_blur, partial(_motion_blur, frames.flow))
    color = shot.on_some(color, config.defocus, partial(shot.defocus, frames.depth))
    color = shot.expose(color, config)
    if config.noise[0]:
        sigma = shot.strength(config.noise)
        color.addcmul_(dice.normal(*color.shape), sigma)
    return shot.on_some(color, config.compression, _compress).clamp_(0, 1)


class _Shot:
    """The effects on the frames of a batch of scenes that depend on further draws."""

    def __init__(self, dice: Dice, batch: int, times: int) -> None:
        self.dice, self.batch, self.times = dice, batch, times

    def repeated(self, values: Tensor) -> Tensor:
        """(B, ...) one value per scene -> (TB, ..., 1, 1) for its frames."""
        return torch.cat([values] * self.times).view(self.times * len(values), -1, 1, 1)

    def strength(self, setting: tuple[float, float]) -> Tensor:
        """(TB, 1, 1, 1) of an effect that is computed for all scenes; 0 for those without it."""
        return self.repeated(self.dice.strength(self.batch, setting))

    def on_some(self, frames: Tensor, setting: tuple[float, float], effect: _Effect) -> Tensor:
        """Apply an effect to a fixed number of scenes, drawn at random; the others cost nothing."""
        share, largest = setting
        count = math.ceil(share * self.batch)
        if not count:
            return frames
        chosen = self.dice.uniform(self.batch).argsort()[:count]
        # `count` is rounded up; the share is right on average because some strengths are 0
        strength = self.dice.strength(count, (share * self.batch / count, largest))
        numbers = torch.cat([chosen + time * self.batch for time in range(self.times)])
        changed = effect(frames[numbers], numbers, self.repeated(strength))
        return frames.index_copy_(0, numbers, changed)

    def defocus(self, depth: Tensor, frames: Tensor, numbers: Tensor, strength: Tensor) -> Tensor:
        """Blur layers far from the focus."""
        focus = self.repeated(self.dice.uniform(len(numbers) // self.times))
        blurred = _box_blur(_box_blur(frames))
        return torch.lerp(frames, blurred, strength * (depth[numbers] - focus).abs().sqrt())

    def expose(self, frames: Tensor, config: RenderConfig) -> Tensor:
        """Apply light to the scene, then the colours of the camera: matrix, offset and gamma."""
        batch, dice = self.batch, self.dice
        strength = dice.strength(batch, config.color_change)[:, None]
        changes = strength * dice.uniform(batch, 6, low=-1.0)
        # frame 1 keeps its colours, the last has all of the change
        shares = [time / max(1, self.times - 1) for time in range(self.times)]
        changes = torch.cat([changes * share for share in shares])
        gain, (saturation, offset, gamma) = changes[:, :3].exp(), changes[:, 3:].unbind(1)
        matrix = torch.diag_embed(gain) * (1 + saturation)[:, None, None]
        matrix = matrix - (saturation / 3)[:, None, None]
        return recolor(frames, matrix, offset / 4, (self._light(frames, config), gamma.exp()))

    def _light(self, frames: Tensor, config: RenderConfig) -> Tensor:
        """(TB, 1, h, w) drifting shadows and a vignette, on a coarse grid."""
        batch, dice = self.batch, self.dice
        height, width = (max(2, side // 16) for side in frames.shape[-2:])
        y, x = (torch.linspace(-1, 1, side, device=dice.device) for side in (height, width))
        y = y[:, None]
        field = torch.zeros(len(frames), 1, height, width, device=dice.device)
        for _ in range(3):
            wave = dice.normal(batch, 2) * 2.5
            phase = dice.uniform(batch, 1, high=2 * math.pi)
            drift = dice.normal(batch, 1) * 0.4
            phases = torch.cat([phase + time * drift for time in range(self.times)])
            wave_x, wave_y = self.repeated(wave).chunk(2, 1)
            field += (wave_x * x + wave_y * y + phases[..., None, None]).sin()
        shadow = self.strength(config.shadow) * torch.sigmoid(3 * field)
        vignette = self.strength(config.vignette) * (x**2 + y**2) / 2
        return (1 - shadow) * (1 - vignette)


def _motion_blur(flow: Tensor, frames: Tensor, numbers: Tensor, strength: Tensor) -> Tensor:
    """Average along the motion, half of it before and half after the time of the frame."""
    path = flow[numbers] * strength
    length = torch.hypot(path[:, :1], path[:, 1:])
    return _smear(frames, path * (_LONGEST_BLUR / length.clamp_min(_LONGEST_BLUR)))


def _smear(frames: Tensor, path: Tensor) -> Tensor:
    """Average along lines (N, 2, H, W) in px, with the pixel in the middle."""
    if has_kernels(frames.device):
        from .kernels import smear  # imports Triton

        return smear(frames, path, _NUM_TAPS)
    here = sampling_grid(torch.zeros_like(path[:1]))
    step = (sampling_grid(path) - here) / (_NUM_TAPS - 1)
    total = torch.zeros_like(frames)
    for tap in range(_NUM_TAPS):
        grid = torch.add(here, step, alpha=tap - (_NUM_TAPS - 1) / 2)
        total += sample_clamped(frames, grid)
    return total.div_(_NUM_TAPS)


def _box_blur(frames: Tensor) -> Tensor:
    """Average over squares of 5x5 px."""
    if has_kernels(frames.device):
        from .kernels import box_blur  # imports Triton

        return box_blur(frames, radius=2)
    padded = F.pad(frames, (2, 2, 2, 2), mode="replicate")
    return F.avg_pool2d(F.avg_pool2d(padded, (1, 5), stride=1), (5, 1), stride=1)


def _compress(frames: Tensor, numbers: Tensor, strength: Tensor) -> Tensor:
    """Quantise the cosine transform of 8x8 blocks, with larger steps for finer detail."""
    height, width = frames.shape[-2:]
    fill = (0, -width % _BLOCK, 0, -height % _BLOCK)
    padded = F.pad(frames, fill, mode="replicate") if any(fill) else frames
    rows, columns = (side // _BLOCK for side in padded.shape[-2:])
    blocks = padded.unflatten(3, (columns, _BLOCK)).unflatten(2, (rows, _BLOCK)).transpose(3, 4)
    number = torch.arange(_BLOCK, device=frames.device, dtype=frames.dtype)
    cosines = (math.pi / _BLOCK * number[:, None] * (number + 0.5)).cos() * math.sqrt(2 / _BLOCK)
    cosines *= torch.where(number == 0, math.sqrt(0.5), 1.0)[:, None]  # orthonormal rows
    # rows and columns in one product: a GPU is slow at many products of 8x8
    transform = torch.kron(cosines, cosines)
    steps = 0.1 + 0.06 * (number + number[:, None])  # at full strength
    step = steps.flatten() * strength[:, :, 0] + 1e-3  # (N, 1, 64)
    waves = blocks.reshape(len(frames), -1, _BLOCK**2) @ (transform / step.mT).mT
    restored = (waves.round_() @ (transform * step.mT)).view(blocks.shape)
    return restored.transpose(3, 4).reshape(padded.shape)[..., :height, :width]


def augment_batch(batch: FlowBatch, config: AugmentConfig, dice: Dice) -> FlowBatch:
    """Augment every pair of a batch, without a change of scale: rendered scenes vary in scale."""
    number = len(batch.flow)
    draws = dice.uniform(2, 4, number, low=-1.0)
    apart = dice.happens(number, share=config.asymmetric_color)  # each frame separately
    draws[1] = torch.lerp(draws[0], draws[1], apart)
    draws = draws * dice.happens(number, share=config.color)
    image1 = _jitter(batch.image1, draws[0], config)
    image2 = _erase(_jitter(batch.image2, draws[1], config), config, dice)
    varied = FlowBatch(image1, image2, batch.flow, batch.valid)
    return _flip(varied, (config.horizontal_flip, config.vertical_flip), dice)


def _jitter(image: Tensor, draws: Tensor, config: AugmentConfig) -> Tensor:
    """Change brightness, contrast, saturation and hue; `draws` (4, B) are in [-1, 1]."""
    reach = (config.brightness, config.contrast, config.saturation, 2 * math.pi * config.hue)
    brightness, contrast, saturation, hue = (
        (extent * draw)[:, None, None] for extent, draw in zip(reach, draws, strict=True)
    )
    mean = image.mean((2, 3))[:, None]  # (B, 1, 3)
    gray = sum(weight * mean[..., i : i + 1] for i, weight in enumerate(LUMA))
    # contrast is about the mean grey of the frame
    identity = torch.eye(3, device=image.device)
    luma = torch.cat([torch.full_like(identity[:, :1], weight) for weight in LUMA], 1)
    away = (1 + saturation) * identity - saturation * luma  # from grey
    across = (identity.roll(1, 0) - identity.roll(1, 1)) / math.sqrt(3)  # about the grey axis
    turn = hue.cos() * identity + (1 - hue.cos()) / 3 + hue.sin() * across
    matrix = (1 + contrast) * away @ turn
    offset = (1 + brightness) * gray * -contrast
    return recolor(image, (1 + brightness) * matrix, offset.flatten())


def _erase(image: Tensor, config: AugmentConfig, dice: Dice) -> Tensor:
    """Fill random rectangles of the frames with their mean colour."""
    batch, _, height, width = image.shape
    mean = image.mean((2, 3), keepdim=True)
    row = torch.arange(height, device=image.device)[:, None]
    column = torch.arange(width, device=image.device)
    chosen = dice.happens(batch, share=config.eraser)
    fewest, most = config.eraser_count
    count = chosen * (fewest + dice.integers(batch, high=most - fewest + 1))
    shortest, longest = config.eraser_size
    hidden = torch.zeros(batch, height, width, dtype=torch.bool, device=image.device)
    for number in range(most):
        top = dice.uniform(batch, 1, 1, high=height)
        left = dice.uniform(batch, 1, 1, high=width)
        sides = dice.uniform(2, batch, 1, 1, low=shortest, high=longest)
        inside = (row >= top) & (row < top + sides[0]) & (column >= left)
        inside &= column < left + sides[1]
        hidden |= inside & (number < count)[:, None, None]
    return torch.where(hidden[:, None], mean, image)


def _flip(batch: FlowBatch, shares: tuple[float, float], dice: Dice) -> FlowBatch:
    """Mirror some of the pairs from left to right, some from top to bottom: one copy of each."""
    number, _, height, width = batch.flow.shape
    chosen = torch.stack([dice.happens(number, share=share) for share in shares], 1)  # (B, 2)
    places = [torch.arange(side, device=chosen.device) for side in (width, height)]
    x, y = (
        torch.where(mirror[:, None] > 0, place.flip(0), place)
        for mirror, place in zip(chosen.unbind(1), places, strict=True)
    )
    source = (y[:, :, None] * width + x[:, None]).flatten(1)[:, None]  # (B, 1, HW)

    def mirrored(values: Tensor) -> Tensor:
        where = source.expand(-1, values.shape[1], -1)
        return values.flatten(2).gather(2, where).view(values.shape)

    flow = mirrored(batch.flow).mul_(1 - 2 * chosen[..., None, None])
    valid = mirrored(batch.valid[:, None])[:, 0]
    return FlowBatch(mirrored(batch.image1), mirrored(batch.image2), flow, valid)
