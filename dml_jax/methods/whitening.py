"""A closed-form linear layer that makes the covariance within classes spherical.

It scales down the directions in which the images of a class vary (Hatch & Stolcke, "Generalized
linear kernels for one-versus-all classification", ICASSP 2006) and scales all other directions by a
common factor. It needs no iterations and no random numbers.
"""

import numpy as np

# Added to the covariance, relative to its mean eigenvalue. On validation classes of Cars196, all
# values from 0.3 to 10 were better than no layer.
SHRINKAGE = 1.0


def within_classes(features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kernel float32 [K, K] and bias [K] of z = W (x - m), W = (S + s I)^(-1/2).

    S is the covariance of features float [N, K] around the means of their classes, int [N] in
    0..C-1; m is the mean feature; s is SHRINKAGE times the mean eigenvalue of S. W is scaled like
    the identity: its mean eigenvalue is 1. If no class has two different rows, W is the identity.
    """
    x = np.asarray(features, np.float64)
    counts = np.bincount(labels)
    means = np.zeros((len(counts), x.shape[1]))
    np.add.at(means, labels, x)
    means /= np.maximum(counts, 1)[:, None]
    within = x - means[labels]
    eigenvalues, axes = np.linalg.eigh(within.T @ within / len(x))
    shrinkage = SHRINKAGE * eigenvalues.mean()
    scales = np.ones(len(axes))
    if shrinkage > 0:
        scales = (np.maximum(eigenvalues, 0) + shrinkage) ** -0.5
    kernel = axes * (scales / scales.mean()) @ axes.T
    return kernel.astype(np.float32), (-x.mean(axis=0) @ kernel).astype(np.float32)
