import torch
from torch import Tensor, nn


class ConvBlock(nn.Module):
    """Convolution without bias, batch normalisation (unless told not to), ReLU.

    `up=True` makes it a 4x4 transposed convolution that doubles the size.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 3,
        stride: int = 1,
        dilation: int = 1,
        *,
        up: bool = False,
        norm: bool = True,
    ) -> None:
        super().__init__()
        self.conv: nn.Module
        if up:
            self.conv = nn.ConvTranspose2d(in_channels, out_channels, 4, 2, 1, bias=False)
        else:
            padding = dilation * (kernel // 2)
            self.conv = nn.Conv2d(
                in_channels, out_channels, kernel, stride, padding, dilation, bias=False
            )
        self.bn = nn.BatchNorm2d(out_channels) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, out, H', W')."""
        return torch.relu(self.bn(self.conv(x)))


def initialize(model: nn.Module) -> None:
    """Kaiming normal (fan out, ReLU) for every convolution; batch norms keep torch's 1 and 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
