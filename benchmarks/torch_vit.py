"""ViT-S/16 in torch's own layers, for comparisons. Requires torch."""

import torch
from torch import nn


class SmallVisionTransformer(nn.Module):
    """The class token after the final norm [B, 384], of images [B, 3, side, side]."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 384, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, 384))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (side // 16) ** 2, 384))
        layer = nn.TransformerEncoderLayer(
            384, 6, 1536, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 12, nn.LayerNorm(384, 1e-6), enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1)
        return self.blocks(tokens + self.positions)[:, 0]
