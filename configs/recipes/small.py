"""The experiments on the built-in digits and on Omniglot, which differ in the method only.

No paper reports results on these. Raw pixels reach a Recall@1 of about 0.53 on the digits and 0.25
on Omniglot.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from ml_collections import ConfigDict

from configs.base import Variants, experiment
from dml_jax.backbones import resnet
from dml_jax.config import Data, Evaluation, Group, Train

DIGITS: dict[str, Any] = {
    "data": Data(
        name="digits", batch_size=64, images_per_class=4, threads=1
    ),  # more would wait for Python's lock
    "backbone": resnet.Config(block="basic", depths=(1, 1, 1), widths=(16, 32, 64), stem="small"),
    "evaluation": Evaluation(controls=True),
}
OMNIGLOT: dict[str, Any] = {
    "data": Data(
        name="omniglot",
        path="data/omniglot",
        batch_size=64,
        images_per_class=4,
        crop="random_resized",
        image_size=48,
        resize=48,
        crop_scale=(0.6, 1.0),
        crop_ratio=(0.8, 1.25),
        threads=1,  # reads 5,000 images/s; more would wait for Python's lock
    ),
    "backbone": resnet.Config(block="basic", depths=(1, 1, 1), widths=(32, 64, 128)),
    "evaluation": Evaluation(controls=True),
}


def on_omniglot(
    method: Any, groups: dict[str, Group], variants: Variants | None = None
) -> Callable[..., ConfigDict]:
    """`get_config` of a method on Omniglot: training uses the 136 characters of
    images_background_small1, testing the 106 characters of images_background_small2 whose alphabets
    are not among them, with twenty drawings each."""
    train = Train(groups=groups, steps=1200, schedule="cosine", evaluate_every=600)
    return partial(
        experiment,
        f"omniglot_{method.name}",
        variants=variants,
        method=method,
        train=train,
        **OMNIGLOT,
    )
