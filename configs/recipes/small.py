"""The experiments on the built-in digits and on Omniglot, which differ in the method only.

No paper reports results on these. Raw pixels reach a Recall@1 of about 0.53 on the digits and 0.25
on Omniglot, where training uses the 136 characters of images_background_small1, testing the 106
characters of images_background_small2 whose alphabets are not among them, with twenty drawings
each.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from ml_collections import ConfigDict

from configs.base import Variants, experiment
from dml_jax.backbones import resnet
from dml_jax.config import Data, Evaluation, Group, Train

SHAPE: dict[str, Any] = {"block": "basic", "depths": (1, 1, 1)}
BATCH: dict[str, Any] = {"batch_size": 64, "images_per_class": 4}
DIGITS: dict[str, Any] = {
    "data": Data(name="digits", threads=1, **BATCH),  # more would wait for Python's lock
    "backbone": resnet.Config(widths=(16, 32, 64), stem="small", **SHAPE),
    "evaluation": Evaluation(controls=True),
}
OMNIGLOT: dict[str, Any] = {
    "data": Data(
        name="omniglot",
        path="data/omniglot",
        crop="random_resized",
        image_size=48,
        resize=48,
        crop_scale=(0.6, 1.0),
        crop_ratio=(0.8, 1.25),
        threads=1,  # reads 5,000 images/s; more would wait for Python's lock
        **BATCH,
    ),
    "backbone": resnet.Config(widths=(32, 64, 128), **SHAPE),
    "evaluation": Evaluation(controls=True),
}


def on_omniglot(
    method: Any, groups: dict[str, Group], variants: Variants | None = None
) -> Callable[..., ConfigDict]:
    """`get_config` of a method on Omniglot."""
    train = Train(groups=groups, steps=1200, schedule="cosine", evaluate_every=600)
    name = f"omniglot_{method.name}"
    return partial(experiment, name, variants=variants, method=method, train=train, **OMNIGLOT)
