"""MPN with the settings of its authors' configuration files (github.com/dvl-tum/intra_batch), unrounded.

Variants: `large`, images of 256 pixels (appendix B of the paper); `dim64` to `dim1024`, the size of the embedding
(appendix A); `auxiliary` and `mpn_only`, one of the two losses (Table 3); `refined`, evaluated also after message
passing among reciprocal neighbours (Table 3).

The code has ingredients that the paper does not mention: max pooling, random erasing, a standard deviation of 0.299
instead of 0.229 for red, and two updates of the running batch statistics per step (activations are recomputed in the
backward pass). After 30 and 50 of the 70 epochs the code continues from the epoch that is best on the test set so far;
the learning rate is decayed only at the first of the two. The clean protocol decays it but does not go back.
"""

from dataclasses import replace

from ml_collections import ConfigDict

from configs.recipes.published import Reported, experiment, without_protocol
from dml_jax.config import Group, Train
from dml_jax.options.backbones import resnet
from dml_jax.options.methods import mpn


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
) -> ConfigDict:
    """MPN on a data set.

    Args:
      dataset, variant, reported: see `experiment`.
      learning_rate, weight_decay: of all parameters.
      classes, images: classes per batch, and images per class.
      temperature, layers, heads, concatenate: as in `mpn.Config`.
    """
    config = experiment(
        dataset,
        variant,
        reported,
        backbone=replace(
            resnet.resnet50(),
            pretrained="weights/resnet50",
            stage_bn_updates=2,
            pixels=resnet.Pixels(std=(0.299, 0.224, 0.225)),
        ),
        method=mpn.Config(temperature=temperature, layers=layers, heads=heads, concatenate=concatenate),
        train=Train(
            groups=dict.fromkeys(mpn.GROUPS, Group(learning_rate, weight_decay)),
            epochs=70,
            optimizer="radam",
            schedule="step",
            milestones=(30,),
            gamma=0.1,
        ),
    )
    config.data.update(sampler="mpn", batch_size=classes * images, images_per_class=images, image_size=227, erasing=0.5)
    if config.train.select == "test":
        config.train.reload_best_epochs = (30, 50)
    match without_protocol(variant):
        case "large":
            config.data.update(image_size=256, resize=288)
        case "auxiliary":
            config.method.losses = "auxiliary"
        case "mpn_only":
            config.method.losses = "mpn"
        case "refined":
            config.evaluation.refine = ("reciprocal",)
        case size if size.startswith("dim"):
            config.method.embedding_dim = int(size.removeprefix("dim"))
    return config
