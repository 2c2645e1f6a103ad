"""Custom image folders, the recommended starting point: Proxy-Anchor on EfficientNet-Lite0 with ImageNet weights.

    python -m dml_jax.main --config=configs/folder_baseline.py --config.data.path=photos/

One folder per class; half of the classes are used for training, the others measure retrieval on unseen classes. First
the embedding layer and the proxies are trained on features of the frozen network, then everything, on random crops of
160 pixels: minutes on two CPU cores. The variant `frozen` stops after the first part, seconds once the features are
computed; `small` trains a small network from scratch on 64 x 64 pixels, for images that are not photographs.

The folder may also be prepared first, which reads large photographs faster:

    dml-jax prepare --name=folder --source=photos/ --output=data/photos --short_side=256
"""

from dataclasses import asdict

from ml_collections import ConfigDict

from configs.base import base
from dml_jax.backbones import efficientnet_lite, resnet
from dml_jax.config import Group, Train
from dml_jax.methods import baseline

VARIANTS = ("frozen", "small")


def photographs(name: str, variant: str) -> ConfigDict:
    """A configuration with data, augmentation and backbone, but without method and training."""
    config = base(f"{name}-{variant}" if variant else name)
    config.data.update(
        name="folder", path="data/photos", batch_size=32, images_per_class=4, crop="random_resized", flip=0.5,
    )  # fmt: skip
    config.evaluation.controls = True
    if variant == "small":
        config.data.update(image_size=64, resize=72, crop_scale=(0.2, 1.0), jitter=0.3, greyscale=0.1)
        config.backbone = asdict(
            resnet.Config(block="basic", depths=(1, 1, 1, 1), widths=(16, 32, 64, 128), stem="small")
        )
    else:
        config.data.update(image_size=224, resize=256, interpolation="bicubic", crop_scale=(0.3, 1.0))
        config.data.training_size = 0 if variant == "frozen" else 160
        config.backbone = asdict(efficientnet_lite.Config(pretrained="lite0", freeze_bn=True))
    return config


def get_config(variant: str = "") -> ConfigDict:
    config = photographs("folder_baseline", variant)
    if variant == "small":
        config.method = baseline.as_values(baseline.make_config(embedding_dim=64))
        rates = {"backbone": 1e-3, "embedding": 1e-3, "loss": 1e-2}
        groups = {name: Group(rate, weight_decay=1e-4) for name, rate in rates.items()}
        config.train = asdict(Train(groups=groups, epochs=20, schedule="cosine"))
        return config
    config.method = baseline.as_values(baseline.make_config("proxy_anchor", embedding_dim=512))
    groups = {"embedding": Group(3e-4, weight_decay=1e-4), "loss": Group(1e-2, weight_decay=1e-4)}
    head = Train(
        groups={"backbone": Group(0.0, freeze=True), **groups},
        feature_views=2,
        steps=600,
        optimizer="adamw",
        schedule="cosine",
    )
    if variant == "frozen":
        config.train = asdict(head)
        return config
    config.head = asdict(head)
    config.train = asdict(
        Train(
            groups={"backbone": Group(1e-4, weight_decay=1e-4), **groups},
            steps=300,
            optimizer="adamw",
            schedule="cosine",
        )
    )
    return config
