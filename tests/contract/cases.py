"""How the tests of the contract examine a method. `P.py` beside this file says it for the methods
of paper P, has the small runs that `benchmarks/interruptions.py` interrupts and, as FROZEN, a configuration, parameter
groups to freeze, and the groups of batch statistics with other names."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dml_jax.backbones.contract import Backbone
from dml_jax.methods.contract import Batch, Method, TrainingSet
from tests import toys

DATA = TrainingSet(classes=8, images=64)


def degenerate(views: int, classes: int = DATA.classes) -> dict[str, Batch]:
    usual = toys.batch(views)
    images, labels = np.asarray(usual.images), np.asarray(usual.labels)
    same, rows = np.broadcast_to(images[:, :1], images.shape), np.arange(len(labels), dtype=np.int32)
    cases = {
        "duplicates": (same, labels),
        "pairs of duplicates": (images[:, ::2].repeat(2, axis=1), rows // 2 % classes),
        "zero images": (0 * images, labels),
        "one class": (images, 0 * labels),
        "one class of duplicates": (same, 0 * labels),
        "singletons, or nearly": (images, rows % classes),
        "opposite": (np.where(rows[:, None, None, None] % 2 == 0, same, 255 - same), labels),
    }
    return {k: Batch(jnp.asarray(x), jnp.asarray(y), usual.index) for k, (x, y) in cases.items()}


class Small(NamedTuple):
    """A method with few parameters, for test_methods.py.

    Attributes:
      build: from a toy backbone, for DATA.
      in_float64: the same where 64 bits would draw other random numbers; None for `build`.
      frozen: (encoded at test time, encoded in training) -> what to train on with a frozen batch norm.
      slow, slow_chunks: all its tests, or that of chunks, run with the slow tests.
      examined: `dml-jax check` is run on it.
      reverses: the path of the function with which it reverses gradients.
    """

    build: Callable[[Backbone], Method]
    in_float64: Callable[[Backbone], Method] | None = None
    frozen: Callable[[Any, Any], Any] = lambda tested, trained: tested
    slow: bool = False
    slow_chunks: bool = True
    examined: bool = True
    reverses: str = ""


# Much larger than an array of embeddings: images, feature maps, similarities of the batch to itself, logits.
BATCH, DIM, CHANNELS, CLASSES = 64, 8, 64, 1000
LARGE_DATA, BODY = TrainingSet(CLASSES, 5000), toys.backbone(CHANNELS)
STATISTICS = 8 * 3 * CHANNELS * 4  # bytes of a batch norm, from eight devices


class Large(NamedTuple):
    """A method for many classes, for test_compiled_step.py and test_device_counts.py.

    Attributes:
      build: the method on BODY for LARGE_DATA, and its teacher if it needs one.
      limit: bytes of the largest array that devices exchange.
      slow, slow_trace: the tests that compile its step, or trace it in float64, run with the slow tests.
    """

    build: Callable[[], tuple[Method, Any]]
    limit: int = STATISTICS
    slow: bool = True
    slow_trace: bool = True
