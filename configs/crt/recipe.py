"""CRT on all data sets; sources and states of all values are in `values.csv`.

No code is public and the paper states neither the optimizer nor the schedule: what it leaves open
is taken from the code of the multi-similarity loss and of the first author's earlier work
(github.com/kanshichao/CBML). 40 epochs on CUB are close to the former's 3,000 steps. The paper does
not say how it selected the epoch either, so the protocol follows comparable code.
"""

from dataclasses import replace
from typing import Any

from configs import base
from configs.recipes import large_batch
from dml_jax.backbones import bn_inception, deit, googlenet, mit, resnet
from dml_jax.config import Data, Group, Train
from dml_jax.methods import crt

MIT_B2 = replace(mit.PUBLISHED["mit_b2"], pretrained="weights/mit_b2", drop_path=0.1)
VARIANTS: dict[str, dict[str, Any]] = {
    # The multi-similarity loss with the values printed in its paper, not 40 and 0.5 as in its code;
    # the paper of CRT does not say which it uses.
    "ms_printed": {"method.multi_similarity.beta": 50.0, "method.multi_similarity.base": 1.0},
    # Table 5
    "mit_b1": {"backbone": mit.Config(pretrained="weights/mit_b1", drop_path=0.1)},
    "deit": {"backbone": deit.Config(pretrained="weights/deit_small")},
    "resnet50": {"backbone": resnet.Config(pretrained="weights/resnet50", freeze_bn=True)},
    "bn_inception": {
        "backbone": bn_inception.Config(pretrained="weights/bn_inception", freeze_bn=True)
    },
    "googlenet": {"backbone": googlenet.Config(pretrained="weights/googlenet", freeze_bn=True)},
}


SECTIONS: dict[str, Any] = {
    "data": Data(
        sampler="distinct_chunks",
        batch_size=80,
        images_per_class=5,
        flip=0.5,
        resize=256,
        resize_first=True,
        crop="random_resized",
        crop_scale=(0.16, 1.0),
        image_size=227,
    ),
    "backbone": MIT_B2,
    "method": crt.Config(
        embedding_dims=(128, 1024), prototypes=(64, 64), lambda1=(1.0, 0.1), lambda2=0.9
    ),
    "train": Train(
        groups=dict.fromkeys(crt.GROUPS, Group(3e-5, weight_decay=5e-4)),
        optimizer="adam",
        epochs=40,
        schedule="step",
        milestones=(16, 32),
        gamma=0.1,
        checkpoint_every=1000,
    ),
}
PRODUCTS = {"data.batch_size": 180, "method.lambda1": (1.0, 0.9)}  # SOP and In-Shop


def on(dataset: str) -> base.Contents:
    """The contents of the file of a data set."""
    large = large_batch.variants(180, per_device=60) if dataset == "sop" else {}
    differences = PRODUCTS if dataset in ("sop", "inshop") else {}
    return base.on(
        dataset,
        protocol=base.PAPER_PROTOCOL,
        variants={**VARIANTS, **large},
        differences=differences,
        **SECTIONS,
    )
