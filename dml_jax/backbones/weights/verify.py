"""Classifying a photograph with converted weights: a check of everything from pixels to logits.

Wrong pixels, sizes or interpolation change no tensor, so only the classes that a network names for a known photograph
show them.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dml_jax.errors import WeightsError

CLASSES = Path(__file__).with_name("imagenet_classes.txt")  # in the order of the published classifiers
LIKELIEST = 5  # classes that are listed


def class_names() -> list[str]:
    """The 1,000 classes of ImageNet (ILSVRC 2012)."""
    return CLASSES.read_text().splitlines()


def classifier(arrays: Mapping[str, np.ndarray], source: str) -> tuple[np.ndarray, np.ndarray]:
    """The kernel [K, 1000] and bias [1000] of the classifier of ImageNet among converted arrays."""
    kernels = [path for path in arrays if path.startswith("classifier/") and path.endswith("/kernel")]
    if len(kernels) != 1:
        raise WeightsError(f"--verify: {source} holds {len(kernels)} classifiers of ImageNet, not one; omit --verify")
    kernel, bias = arrays[kernels[0]], arrays[kernels[0].removesuffix("kernel") + "bias"]
    if kernel.shape[1] != len(class_names()):
        raise WeightsError(
            f"--verify: {source} tells {kernel.shape[1]} classes apart, not the {len(class_names())} of ImageNet; omit "
            "--verify"
        )
    return kernel, bias


def likeliest(features: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> list[tuple[str, float]]:
    """(class, probability) of the likeliest classes, from the feature map [1, h, w, K] of an image."""
    logits = np.asarray(features, np.float64).mean(axis=(0, 1, 2)) @ kernel + bias
    probabilities = np.exp(logits - logits.max())
    probabilities /= probabilities.sum()
    names = class_names()
    return [(names[i], float(probabilities[i])) for i in np.argsort(-logits, kind="stable")[:LIKELIEST]]
