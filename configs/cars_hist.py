"""HIST on Cars196: ResNet-50 or BN-Inception, 512-d (Lim, Yun, Park, Choi, CVPR 2022).

    python -m dml_jax.main --config=configs/cars_hist.py                      clean protocol
    python -m dml_jax.main --config=configs/cars_hist.py --protocol=paper     the authors' protocol
    python -m dml_jax.main --config=configs/cars_hist.py:retuned
    python -m dml_jax.main --config=configs/cars_hist.py:lite0            hours on two CPU cores

Published for the authors' protocol: R@1 89.8 (best run), 89.6 ± 0.2 (mean of runs); a reproduction
(Yuan et al., MLRC 2022) reports 89.8, and 90.2 with the values that it found (`retuned`). No
results are published for a fixed schedule.
All numbers: configs/hist/published.csv. Cost: 0.6 hours on a V100, 0.9 with BN-Inception (the
reproduction).

The settings follow the authors' command (github.com/ljin0429/HIST); with BN-Inception, they
published only tau, alpha and lambda_s, and the other settings are the reproduction's. For the
retuned alpha with BN-Inception, the reproduction prints 0.9 in Table 2 and 1.0 in Table 8; the
latter is used here. `lite0` is a small network on small crops for fewer epochs
(`configs/recipes/cars_lite0.py`); no paper has it.
"""

from ml_collections import ConfigDict

from configs.base import Variants, experiment
from configs.recipes import cars_lite0
from dml_jax.backbones import bn_inception, resnet
from dml_jax.config import Data, Evaluation, Group, Train
from dml_jax.methods import hist

PAPER_PROTOCOL = {
    "data.exif_rotation": False,  # the authors' loaders ignore it
    "train.select": "test",  # the epoch that is best on the test classes
    "evaluation.protocol": "paper",  # drops the first neighbour, whichever image it is
    "evaluation.nmi_average": "geometric",
    "evaluation.kmeans_init": "k-means++",
    "evaluation.kmeans_restarts": 10,
    "evaluation.kmeans_iterations": 300,
}
BN_INCEPTION = {
    "backbone": bn_inception.Config(pretrained="weights/bn_inception", freeze_bn=True),
    "train.groups": {
        "backbone": Group(learning_rate=1e-4, weight_decay=5e-5, warmup="freeze"),
        "embedding": Group(learning_rate=1e-4, weight_decay=5e-5),
        "distributions": Group(learning_rate=1e-1, weight_decay=5e-5),
        "hgnn": Group(learning_rate=5e-4, weight_decay=5e-5),
    },
    "train.optimizer": "adamw",
    "train.epochs": 60,
}
VARIANTS: Variants = {
    "retuned": {"method.lambda_s": 0.8},
    "bn_inception": {**BN_INCEPTION, "method.tau": 24.0},
    "bn_inception-retuned": {
        **BN_INCEPTION,
        "method.tau": 22.0,
        "method.alpha": 1.0,
        "method.lambda_s": 1.5,
    },
    "lite0": cars_lite0.OVERRIDES,
}


def get_config(variant: str = "") -> ConfigDict:
    return experiment(
        "cars_hist",
        variant,
        VARIANTS,
        data=Data(
            name="cars",
            path="data/cars",
            sampler="shuffled",
            batch_size=32,
            crop="random_resized",
            image_size=224,
            resize=256,
            flip=0.5,
        ),
        # Scales and shifts are trained.
        backbone=resnet.Config(pretrained="weights/resnet50", freeze_bn=True),
        method=hist.Config(
            tau=32.0,
            alpha=0.9,
            lambda_s=1.0,
            embedding_dim=512,
            hidden_dim=512,
            drop_underflow=True,
        ),
        train=Train(
            groups={
                "backbone": Group(learning_rate=1e-4, weight_decay=1e-4, warmup="freeze"),
                "embedding": Group(learning_rate=1e-4, weight_decay=1e-4),
                "distributions": Group(learning_rate=1e-1, weight_decay=1e-4),
                "hgnn": Group(learning_rate=1e-3, weight_decay=1e-4),
            },
            optimizer="adam",
            warmup_epochs=1,  # before the others
            epochs=50,
            schedule="step",
            period=10,
            gamma=0.5,
            checkpoint_every=1000,
        ),
        evaluation=Evaluation(ks=(1, 2, 4, 8)),
    )
