"""HIST on In-Shop Clothes: ResNet-50, 512-d (the method of Lim, Yun, Park, Choi, CVPR 2022).

    python -m dml_jax.main --config=configs/inshop_hist.py                      clean protocol
    python -m dml_jax.main --config=configs/inshop_hist.py --protocol=paper     the authors' protocol elsewhere

No results or settings are published for this data set, although the authors' code supports it. The settings are those
of Stanford Online Products, which also has thousands of classes with few images each. For comparison, Proxy-Anchor, on
which the authors' code is based, reaches R@1 92.1 with the same backbone and 512 dimensions (as quoted by Seidenschwarz
et al. 2021, Table 2). Cost: not published.
"""

from ml_collections import ConfigDict

from configs.base import experiment
from dml_jax.backbones import resnet
from dml_jax.config import Data, Evaluation, Group, Train
from dml_jax.methods import hist

PAPER_PROTOCOL = {
    "data.exif_rotation": False,  # the authors' loaders ignore it
    "train.select": "test",  # the epoch that is best on the test classes
    "evaluation.protocol": "paper",  # drops the first neighbour, whichever image it is
}


def get_config() -> ConfigDict:
    return experiment(
        "inshop_hist",
        data=Data(
            name="inshop", path="data/inshop", sampler="shuffled", batch_size=32,
            crop="random_resized", image_size=224, resize=256, flip=0.5,
        ),
        backbone=resnet.Config(pretrained="weights/resnet50"),
        method=hist.Config(tau=16.0, alpha=2.0, lambda_s=1.0, embedding_dim=512, hidden_dim=512, drop_underflow=True),
        train=Train(
            groups={
                "backbone": Group(1e-4, weight_decay=1e-4, warmup="freeze"),
                "embedding": Group(1e-4, weight_decay=1e-4),
                "distributions": Group(1e-2, weight_decay=1e-4),
                "hgnn": Group(1e-3, weight_decay=1e-4),
            },
            optimizer="adam",
            warmup_epochs=1,  # before the others
            epochs=60,
            schedule="step", milestones=(10, 20, 30, 40, 50), gamma=0.5,
            checkpoint_every=1000,
        ),
        evaluation=Evaluation(ks=(1, 10, 20, 30, 40), cluster=False),
    )  # fmt: skip
