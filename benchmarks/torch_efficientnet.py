"""EfficientNet-Lite0 in torch, from the package efficientnet-lite-pytorch; for comparisons only."""

import os

import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import nn

from dml_jax.backbones.weights import store


class Normalise(nn.Module):
    """Pixels uint8 [B, H, W, 3] -> float32 [B, 3, H, W], channels last in memory."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return ((pixels.float() - 127) / 128).permute(0, 3, 1, 2)


class PooledFeatures(nn.Module):
    """Normalised images -> features [B, 1280], with the packaged weights, in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(os.cpu_count() or 1)
        file = str(store.source("lite0"))
        self.network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file)
        del self.network._fc
        self.eval().to(memory_format=torch.channels_last)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network.extract_features(images).mean((2, 3))
