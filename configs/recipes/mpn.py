"""MPN and its students with the authors' settings, unrounded (configuration files of github.com/dvl-tum/intra_batch).

Variants of MPN: `large`, images of 256 pixels (appendix B of the paper); `dim64` to `dim1024`, size of the embedding
(appendix A); `auxiliary` and `mpn_only`, one of the two losses (Table 3); `refined`, evaluated also after message
passing among reciprocal neighbours (Table 3).

The code has ingredients that the paper does not mention: max pooling, random erasing, a standard deviation of 0.299
instead of 0.229 for red, and two updates of the running batch statistics per step (activations are recomputed in the
backward pass). After 30 and 50 of the 70 epochs the code continues from the epoch that is best on the test set so far;
the learning rate is decayed only at the first of the two. The clean protocol decays it but does not go back.

Choices where paper and code disagree: for tests the paper resizes images to 256 x 256, its code the shorter side to
256, which is done here. Of the `large` images the paper gives only the size, 256 x 256; the shorter side of 288 is that
of the methods it compares with there.

Variants of a student: what it imitates, `imitation` (refined embeddings), `relational` (their distances),
`distillation_kl` (class probabilities, with the other form of the loss in the code); by default class probabilities.
The paper does not say which form it used, nor whether the cross-entropy with the labels is kept, which it is here. Its
other settings are those of MPN.
"""

from dataclasses import replace
from typing import Any

from ml_collections import ConfigDict

from configs.recipes.published import Reported, experiment, without_protocol
from dml_jax.backbones import resnet
from dml_jax.config import Group, Train
from dml_jax.methods import mpn, student

BACKBONE = replace(
    resnet.resnet50(),
    pretrained="weights/resnet50",
    stage_bn_updates=2,
    pixels=resnet.Pixels(std=(0.299, 0.224, 0.225)),
)


def recipe(
    dataset: str,
    variant: str,
    reported: Reported,
    *,
    learning_rate: float,
    weight_decay: float,
    classes: int,
    images: int,
    temperature: float,
    layers: int,
    heads: int,
    concatenate: bool = False,
    redraw: bool = False,
) -> ConfigDict:
    """MPN on a data set.

    Args:
      dataset, variant, reported: see `experiment`.
      learning_rate, weight_decay: of all parameters.
      classes, images: classes per batch, and images per class.
      temperature, layers, heads, concatenate: as in `mpn.Config`.
      redraw: whether every epoch draws new numbers of classes and images, with the same product.
    """
    config = _experiment(
        dataset,
        variant,
        reported,
        mpn.Config(temperature=temperature, layers=layers, heads=heads, concatenate=concatenate),
        dict.fromkeys(mpn.GROUPS, Group(learning_rate, weight_decay)),
        (classes, images),
        redraw,
    )
    match without_protocol(variant):
        case "large":
            config.data.update(image_size=256, resize=288)
        case "auxiliary":
            config.method.losses = "auxiliary"
        case "mpn_only":
            config.method.losses = "mpn"
        case "refined":
            config.evaluation.refine = ("reciprocal",)
            config.data.images_per_class = images  # also of batches from clusters
        case size if size.startswith("dim"):
            config.method.embedding_dim = int(size.removeprefix("dim"))
    return config


def student_recipe(
    dataset: str,
    variant: str,
    reported: Reported,
    *,
    learning_rate: float,
    weight_decay: float,
    classes: int,
    images: int,
    temperature: float,
    soft_temperature: float,
    redraw: bool = False,
) -> ConfigDict:
    """A student of the MPN that was trained under the same protocol.

    Args:
      dataset, variant, reported: see `experiment`.
      learning_rate, weight_decay, classes, images, redraw: as in `recipe`.
      temperature, soft_temperature: as in `student.Config`.
    """
    kind: Any = without_protocol(variant) or "distillation"
    method = student.Config(
        teacher=f"runs/{dataset}_mpn-paper" if "paper" in variant else f"runs/{dataset}_mpn",
        kind=kind,
        weight=0.01 if kind == "relational" else 1.0,
        soft_temperature=soft_temperature,
        temperature=temperature,
    )
    groups = dict.fromkeys(student.GROUPS, Group(learning_rate, weight_decay))
    return _experiment(dataset, variant, reported, method, groups, (classes, images), redraw)


def _experiment(
    dataset: str,
    variant: str,
    reported: Reported,
    method: Any,
    groups: dict[str, Group],
    batch: tuple[int, int],
    redraw: bool,
) -> ConfigDict:
    classes, images = batch
    config = experiment(
        dataset,
        variant,
        reported,
        backbone=BACKBONE,
        method=method,
        train=Train(groups=groups, epochs=70, optimizer="radam", schedule="step", milestones=(30,), gamma=0.1),
    )
    config.data.update(batch_size=classes * images, image_size=227, erasing=0.5)
    if redraw:
        config.data.sampler = "mpn_redraw"
    else:
        config.data.update(sampler="mpn", images_per_class=images)
    if config.train.select == "test":
        config.train.reload_best_epochs = (30, 50)
    return config
