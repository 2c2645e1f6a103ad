"""MPN as its authors' configuration files have it (github.com/dvl-tum/intra_batch), full precision.

Variants: `large` images of 256 pixels (their appendix B); `dim64` to `dim1024`, the size of the embedding (appendix A);
`auxiliary` and `mpn_only`, one of the two losses (Table 3); `refined`, also judged after message passing among
reciprocal neighbours (Table 3).

What the paper does not mention and the code does: max pooling, random erasing, a standard deviation of 0.299 instead of
0.229 for red, batch statistics that move twice a step (stages run again in the backward pass). After 30 and 50 of the
70 epochs the code goes on from the epoch that is best on the test set so far; the learning rate falls at the first of
the two only. The clean protocol has the fall, and no going back.
"""

from dataclasses import replace

from ml_collections import ConfigDict

from configs.recipes.published import Reported, experiment, plain
from dml_jax.backbones import resnet
from dml_jax.config import Group, Train
from dml_jax.methods import mpn


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
    """MPN on a data set, with `classes` times `images` images in a batch; the rest is named as in `mpn.Config`."""
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
    match plain(variant):
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
