"""Proxy-Anchor on EfficientNet-Lite0 with ImageNet weights, for your own image folders: the
recommended starting point.

    python -m dml_jax.main --config=configs/folder_baseline.py --config.data.path=photos/

The folder has one subfolder per class. Half of the classes are used for training, the other half to
measure retrieval on unseen classes. The embedding layer is computed in closed form from features of
all training images; then the whole network is trained on random crops of 160 pixels. This takes
minutes on two CPU cores, or the time that `--config.train.minutes=8` gives it. Two folds of the
training classes decide which model is kept: the published weights, the layer, the trained network,
or the mean of the weights of the last two.

The variant `frozen` only trains the embedding layer, on features, which takes seconds once these
are computed. `small` trains a small network from scratch on 64 x 64 pixels, for images that are not
photographs.

To read large photographs faster, prepare the folder first:

    dml-jax prepare --name=folder --source=photos/ --output=data/photos --short_side=256
"""

from dataclasses import replace
from functools import partial
from typing import Any

from configs.base import Variants, experiment
from dml_jax.backbones import efficientnet_lite, resnet
from dml_jax.config import Data, Evaluation, Group, Train
from dml_jax.methods import baseline

DATA = Data(
    name="folder",
    path="data/photos",
    batch_size=32,
    images_per_class=4,
    flip=0.5,
    interpolation="bicubic",
    crop="random_resized",
    image_size=224,
    resize=256,
    training_size=160,
    crop_scale=(0.3, 1.0),
)
BACKBONE = efficientnet_lite.Config(pretrained="lite0", freeze_bn=True)
AUGMENTED: dict[str, Any] = {"crop_scale": (0.2, 1.0), "jitter": 0.3, "greyscale": 0.1}
SMALL_DATA = replace(
    DATA, training_size=0, image_size=64, resize=72, interpolation="bilinear", **AUGMENTED
)
SMALL_BACKBONE = resnet.Config(
    block="basic", depths=(1, 1, 1, 1), widths=(16, 32, 64, 128), stem="small"
)
EVALUATION = Evaluation(controls=True, batch_size=32)  # 256 at once would need gigabytes


def groups(backbone: float, embedding: float) -> dict[str, Group]:
    """Parameter groups with these learning rates."""
    rates = {"backbone": backbone, "embedding": embedding, "loss": 1e-2}
    return {name: Group(rate, weight_decay=1e-4) for name, rate in rates.items()}


ON_FEATURES = Train(
    groups={**groups(0.0, 3e-4), "backbone": Group(0.0, freeze=True)},
    feature_views=2,
    steps=600,
    optimizer="adamw",
    schedule="cosine",
)
VARIANTS: Variants = {
    "frozen": {"data.training_size": 0, "train": ON_FEATURES},
    "small": {
        "data": SMALL_DATA,
        "backbone": SMALL_BACKBONE,
        "method": baseline.make_config(embedding_dim=64),
        "train": Train(groups=groups(1e-3, 1e-3), epochs=20, schedule="cosine"),
    },
}
get_config = partial(
    experiment,
    "folder_baseline",
    variants=VARIANTS,
    data=DATA,
    backbone=BACKBONE,
    method=baseline.make_config("proxy_anchor", embedding_dim=0, init="whitened"),
    train=Train(
        groups=groups(1e-4, 3e-5),
        steps=300,
        optimizer="adamw",
        schedule="cosine",
        select="folds",
    ),
    evaluation=EVALUATION,
)
