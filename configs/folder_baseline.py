"""Custom image folders: normalised softmax on an ImageNet-pretrained ResNet-50. The recommended starting point.

One folder per class; half of the classes are used for training, the others measure retrieval on unseen classes. In
addition to the papers' crops and flips, training images vary in brightness, contrast and saturation, and some are
converted to greyscale, which helps with photographs from many cameras.

    python -m dml_jax.convert --weights=hf://timm/resnet50.tv_in1k
    python -m dml_jax.prepare --name=folder --source=photos/ --output=data/photos --short_side=256
    python -m dml_jax.main --config=configs/folder_baseline.py

An unprepared folder also works, --config.data.path=photos/; the first run then checks every image. The variant `small`
needs neither weights nor a GPU: a small network trained from scratch on 64 x 64 pixels.
"""

from dataclasses import asdict

from ml_collections import ConfigDict

from configs.base import base
from dml_jax.config import Group, Train
from dml_jax.options.backbones import resnet
from dml_jax.options.methods import baseline

VARIANTS = ("small",)


def photographs(name: str, variant: str) -> ConfigDict:
    """A configuration with data, augmentation and backbone, but without method and training."""
    config = base(f"{name}-{variant}" if variant else name)
    config.data.update(
        name="folder", path="data/photos", batch_size=32, images_per_class=4, crop="random_resized", image_size=224,
        resize=256, crop_scale=(0.2, 1.0), flip=0.5, jitter=0.3, greyscale=0.1,
    )  # fmt: skip
    config.backbone = asdict(resnet.Config(pretrained="weights/resnet50", freeze_bn=True))
    if variant == "small":
        config.data.update(image_size=64, resize=72)
        config.backbone = asdict(
            resnet.Config(block="basic", depths=(1, 1, 1, 1), widths=(16, 32, 64, 128), stem="small")
        )
    return config


def get_config(variant: str = "") -> ConfigDict:
    config = photographs("folder_baseline", variant)
    small = variant == "small"
    config.method = baseline.as_values(baseline.make_config(embedding_dim=64 if small else 512))
    groups = {
        "backbone": Group(1e-3 if small else 1e-4, weight_decay=1e-4),
        "embedding": Group(1e-3, weight_decay=1e-4),
        "loss": Group(1e-2, weight_decay=1e-4),
    }
    config.train = asdict(Train(groups=groups, epochs=20, schedule="cosine"))
    return config
