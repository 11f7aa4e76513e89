"""Models of images, channels first."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairmean.errors import UserError

_GROUPS = 32
_LARGE = 64  # pixels from which on ResNet-18 begins with the wide stride that it has for photographs


def cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two 5×5×64 convolutions with pooling, then 384-192-10 with dropout: 797,962 parameters on CIFAR-10.

    ReLU and maximum commute, gradients included, so the ReLUs come after the pooling, where they cost a quarter.
    """
    if len(shape) != 3 or min(shape[1:]) < 16:
        raise UserError(
            f"model 'cnn' needs images of at least channels×16×16, the data has {shape}; use model.name=mlp"
        )
    height, width = (((side - 4) // 2 - 4) // 2 for side in shape[1:])
    return nn.Sequential(
        nn.Conv2d(shape[0], 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * height * width, 384),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(192, outputs),
    )


def resnet18(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """ResNet-18 with GroupNorm in place of batch normalisation, which mixes clients: 11,173,962 parameters on CIFAR-10.

    Images below 64 pixels begin with a 3×3 convolution at full resolution; larger ones with 7×7 and a pooling, which
    reduce them to a quarter. Images without a channel axis are taken as grey.
    """
    if len(shape) not in (2, 3) or min(shape[-2:]) < 4:
        raise UserError(
            f"model 'resnet18' needs images of at least 4×4 pixels, the data has {shape}; use model.name=mlp"
        )
    return ResNet18(1 if len(shape) == 2 else shape[0], outputs, large=min(shape[-2:]) >= _LARGE)


class ResNet18(nn.Module):
    """Four stages of two residual blocks with 64, 128, 256 and 512 channels."""

    def __init__(self, channels: int, outputs: int, large: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _convolution(channels, 64, 7 if large else 3, stride=2 if large else 1),
            _norm(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1) if large else nn.Identity(),
        )
        blocks, width = [], 64
        for stage, wider in enumerate((64, 128, 256, 512)):
            blocks += [Block(width, wider, stride=1 if stage == 0 else 2), Block(wider, wider, stride=1)]
            width = wider
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None] if x.dim() == 3 else x
        pooled: Tensor = self.blocks(self.stem(x)).mean((2, 3))
        logits: Tensor = self.head(pooled)
        return logits


class Block(nn.Module):
    """y = ReLU(x + F(x)) with two 3×3 convolutions in F; x is projected where its shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = _convolution(inputs, outputs, 3, stride), _norm(outputs)
        self.second, self.second_norm = _convolution(outputs, outputs, 3), _norm(outputs)
        changes = stride != 1 or inputs != outputs
        self.shortcut = (
            nn.Sequential(_convolution(inputs, outputs, 1, stride), _norm(outputs)) if changes else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.second_norm(self.second(torch.relu(self.first_norm(self.first(x)))))
        return torch.relu(self.shortcut(x) + inner)


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(_GROUPS, channels)
