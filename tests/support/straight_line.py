"""DICL-Flow written straight down, with the authors' key names and without our code.

Slow, explicit, for comparison only: one loop per displacement, bilinear weights by hand.
"""

import math

import torch
import torch.nn.functional as F

WIDTHS = (32, 48, 64, 96, 128, 160, 192)


class StraightLine:
    def __init__(self, state, training=False):
        self.state = state
        self.training = training
        self.statistics = []  # of each batch norm in training, in order: key, mean, variance, count

    def bn(self, x, key):
        weight, bias = self.state[f"{key}.bn.weight"], self.state[f"{key}.bn.bias"]
        if self.training:
            mean = x.mean((0, 2, 3))
            variance = ((x - mean[:, None, None]) ** 2).mean((0, 2, 3))
            count = x.numel() // x.shape[1]
            self.statistics.append((key, mean.detach(), variance.detach(), count))
        else:
            mean = self.state[f"{key}.bn.running_mean"]
            variance = self.state[f"{key}.bn.running_var"]
        x = (x - mean[:, None, None]) / torch.sqrt(variance + 1e-5)[:, None, None]
        return x * weight[:, None, None] + bias[:, None, None]

    def conv(self, x, key, stride=1, dilation=1, norm=True):
        x = F.conv2d(x, self.state[f"{key}.conv.weight"], None, stride, dilation, dilation)
        return (self.bn(x, key) if norm else x).clamp(min=0)

    def deconv(self, x, key, norm=True):
        x = F.conv_transpose2d(x, self.state[f"{key}.conv.weight"], None, 2, 1)
        return (self.bn(x, key) if norm else x).clamp(min=0)

    def fuse(self, resampled, skip, key):
        return self.conv(torch.cat([resampled, skip], 1), f"{key}.conv2")

    def features(self, image):
        x = self.conv(image, "feature.conv_start.0")
        x = self.conv(x, "feature.conv_start.1", stride=2)
        x0 = self.conv(x, "feature.conv_start.2")
        maps = [x0]
        for n in range(1, 7):
            maps.append(self.conv(maps[-1], f"feature.conv{n}a", stride=2))
        for n in range(6, 0, -1):
            key = f"feature.deconv{n}a"
            up = self.deconv(maps[n], f"{key}.conv1", norm=False)
            maps[n - 1] = self.fuse(up, maps[n - 1], key)
        for n in range(1, 7):
            key = f"feature.conv{n}b"
            down = self.conv(maps[n - 1], f"{key}.conv1", stride=2, norm=False)
            maps[n] = self.fuse(down, maps[n], key)
        out = {}
        for n in range(6, 1, -1):
            key = f"feature.deconv{n}b"
            up = self.deconv(maps[n], f"{key}.conv1", norm=False)
            maps[n - 1] = self.fuse(up, maps[n - 1], key)
            out[n] = self.conv(maps[n - 1], f"feature.outconv_{n}")
        return out

    def match(self, f1, f2, n):
        height, width = f1.shape[-2:]
        planes = []
        for dx in range(-3, 4):
            for dy in range(-3, 4):
                shifted = torch.zeros_like(f2)
                x0, x1 = max(0, -dx), min(width, width - dx)
                y0, y1 = max(0, -dy), min(height, height - dy)
                if x0 < x1 and y0 < y1:  # otherwise the shift is larger than the map
                    there = f2[:, :, y0 + dy : y1 + dy, x0 + dx : x1 + dx]
                    shifted[:, :, y0:y1, x0:x1] = there
                seen = (shifted.sum(1, keepdim=True) != 0).to(f1.dtype)
                planes.append(torch.cat([f1 * seen, shifted * seen], 1))
        x = torch.stack(planes, 1)  # (B, 49, 64, H, W)
        batch = x.shape[0]
        x = x.reshape(-1, *x.shape[2:])
        key = f"matching{n}.match"
        x = self.conv(x, f"{key}.0")
        x = self.conv(x, f"{key}.1", stride=2)
        x = self.conv(x, f"{key}.2")
        x = self.conv(x, f"{key}.3")
        x = self.deconv(x, f"{key}.4")
        x = F.conv2d(x, self.state[f"{key}.5.weight"], self.state[f"{key}.5.bias"], 1, 1)
        return x.reshape(batch, 49, height, width)

    def level(self, f1, f2, image, coarse, n):
        if coarse is not None:
            f2 = backward_warp(f2, coarse)
        cost = self.match(f1, f2, n)
        dap = self.state[f"dap_layer{n}.dap_layer.conv.weight"][:, :, 0, 0]
        cost = torch.einsum("ij,bjhw->bihw", dap, cost)
        exponent = (cost - cost.max(1, keepdim=True).values).exp()
        p = exponent / exponent.sum(1, keepdim=True)
        raw = 0
        for dx in range(-3, 4):
            for dy in range(-3, 4):
                vector = torch.tensor([dx, dy], dtype=p.dtype)[None, :, None, None]
                raw = raw + p[:, (dx + 3) * 7 + dy + 3][:, None] * vector
        if coarse is not None:
            raw = raw + coarse
        entropy = -(p * p.clamp(min=1e-300).log()).sum(1, keepdim=True) / math.log(49)
        x = [raw.detach(), entropy.detach(), f1, corner_resize(image, *f1.shape[-2:])]
        x = torch.cat(x, 1)
        dilations = {6: (1, 2, 1), 5: (1, 2, 4, 1), 4: (1, 2, 4, 8, 1)}.get(n, (1, 2, 4, 8, 16, 1))
        for i, dilation in enumerate(dilations):
            x = self.conv(x, f"context_net{n}.{i}", dilation=dilation)
        key = f"context_net{n}.{len(dilations)}"
        x = F.conv2d(x, self.state[f"{key}.weight"], self.state[f"{key}.bias"], 1, 1)
        return raw, raw + x * 2 / 2**n

    def __call__(self, image1, image2):
        """Both flows of the levels 6 … 2: [(raw, refined), …]."""
        pyramid1, pyramid2 = self.features(image1), self.features(image2)
        flows, coarse = [], None
        for n in range(6, 1, -1):
            if flows:
                size = pyramid1[n].shape[-2:]
                coarse = (2 * corner_resize(flows[-1][1], *size)).detach()
            flows.append(self.level(pyramid1[n], pyramid2[n], image1, coarse, n))
        return flows


def corner_resize(x, height, width):
    """Bilinear, first and last samples on the first and last pixels, by hand."""
    rows, columns = x.shape[-2:]
    y = torch.arange(height, dtype=x.dtype) * ((rows - 1) / max(height - 1, 1))
    z = torch.arange(width, dtype=x.dtype) * ((columns - 1) / max(width - 1, 1))
    top, left = y.floor().long().clamp(max=rows - 1), z.floor().long().clamp(max=columns - 1)
    bottom, right = (top + 1).clamp(max=rows - 1), (left + 1).clamp(max=columns - 1)
    a, b = (y - top)[:, None], z - left
    upper = x[..., top, :][..., left] * (1 - b) + x[..., top, :][..., right] * b
    lower = x[..., bottom, :][..., left] * (1 - b) + x[..., bottom, :][..., right] * b
    return upper * (1 - a) + lower * a


def backward_warp(x, flow):
    """Look up x at p + flow(p) by hand; zero where the four neighbours are not all inside."""
    batch, _, height, width = x.shape
    column = torch.arange(width, dtype=x.dtype) + flow[:, 0]
    row = torch.arange(height, dtype=x.dtype)[:, None] + flow[:, 1]
    left, top = column.floor(), row.floor()
    index = torch.arange(batch)[:, None, None]
    total, weights = 0, 0
    for cx, cy in ((left, top), (left + 1, top), (left, top + 1), (left + 1, top + 1)):
        weight = (1 - (column - cx).abs()) * (1 - (row - cy).abs())
        inside = (cx >= 0) & (cx <= width - 1) & (cy >= 0) & (cy <= height - 1)
        weight = torch.where(inside, weight, 0)
        values = x[index, :, cy.clamp(0, height - 1).long(), cx.clamp(0, width - 1).long()]
        total = total + values.permute(0, 3, 1, 2) * weight[:, None]
        weights = weights + weight
    return total * (weights >= 0.9999)[:, None]
