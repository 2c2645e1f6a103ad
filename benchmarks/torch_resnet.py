"""ResNets in torch, for comparisons and weight files. Requires torch."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A bottleneck, with its stride in the 3x3 convolution."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != 4 * width:
            shortcut = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + shortcut)


class ResNet50(nn.Module):
    """With torchvision's parameter names. Returns a feature map [B, 2048, h, w]; `fc` completes the state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        inputs = 64
        for stage, (depth, width) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True)):
            blocks = []
            for index in range(depth):
                blocks.append(Block(inputs, width, 2 if stage and not index else 1))
                inputs = 4 * width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(2048, 1000)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return x


class SmallBlock(nn.Module):
    """Two 3x3 convolutions."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != width:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def small_resnet(widths: tuple[int, ...], stem: str) -> nn.Module:
    """One block per stage, with the stem of ImageNet's networks or a 3x3 convolution; returns the feature map."""
    first = (7, 2, 3) if stem == "imagenet" else (3, 1, 1)
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], *first, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    if stem == "imagenet":
        layers.append(nn.MaxPool2d(3, 2, 1))
    for stage, (inputs, width) in enumerate(zip((widths[0], *widths), widths, strict=False)):
        layers.append(SmallBlock(inputs, width, 2 if stage else 1))
    return nn.Sequential(*layers)


def normalise(images: torch.Tensor) -> torch.Tensor:
    """uint8 [B, H, W, 3] -> float32 [B, 3, H, W], channels last in memory, normalised by ImageNet's statistics."""
    mean = torch.tensor([0.485, 0.456, 0.406], device=images.device)
    std = torch.tensor([0.229, 0.224, 0.225], device=images.device)
    return ((images.float() / 255 - mean) / std).permute(0, 3, 1, 2)
