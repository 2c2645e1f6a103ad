"""HIST on Cars196: ResNet-50 or BN-Inception, 512-d (Lim, Yun, Park, Choi, CVPR 2022).

    python -m dml_jax.main --config=configs/cars_hist.py                      clean protocol
    python -m dml_jax.main --config=configs/cars_hist.py --protocol=paper     the authors' protocol
    python -m dml_jax.main --config=configs/cars_hist.py:lite0            hours on two CPU cores

The sources of all values are in configs/hist/values.csv, published numbers, all for the authors'
protocol, in configs/hist/published.csv. `retuned` has the values of a reproduction (Yuan et al.,
MLRC 2022); `lite0` is in no paper (`configs/recipes/cars_lite0.py`).
"""

from typing import Any

from configs import base
from configs.recipes import cars_lite0
from dml_jax.backbones import bn_inception, resnet
from dml_jax.config import Data, Group, Train
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


def groups(
    rate: float, decay: float, distributions: float, hgnn: float, warmup: Any = "freeze"
) -> dict[str, Group]:
    """Parameter groups from the rates of network, distributions and hypergraph network."""
    return {
        "backbone": Group(rate, decay, warmup=warmup),
        "embedding": Group(rate, decay),
        "distributions": Group(distributions, decay),
        "hgnn": Group(hgnn, decay),
    }


SECTIONS: dict[str, Any] = {
    "data": Data(
        sampler="shuffled",
        batch_size=32,
        crop="random_resized",
        image_size=224,
        resize=256,
        flip=0.5,
    ),
    # Scales and shifts are trained.
    "backbone": resnet.Config(pretrained="weights/resnet50", freeze_bn=True),
    "method": hist.Config(
        tau=32.0, alpha=0.9, lambda_s=1.0, embedding_dim=512, hidden_dim=512, drop_underflow=True
    ),
    "train": Train(
        groups=groups(1e-4, 1e-4, distributions=1e-1, hgnn=1e-3),
        optimizer="adam",
        warmup_epochs=1,  # before the others
        epochs=50,
        schedule="step",
        period=10,
        gamma=0.5,
        checkpoint_every=1000,
    ),
}
BN_INCEPTION = {
    "backbone": bn_inception.Config(pretrained="weights/bn_inception", freeze_bn=True),
    "train.groups": groups(1e-4, 5e-5, distributions=1e-1, hgnn=5e-4),
    "train.optimizer": "adamw",
    "train.epochs": 60,
}
RETUNED = {"method.tau": 22.0, "method.alpha": 1.0, "method.lambda_s": 1.5}
VARIANTS: base.Variants = {
    "retuned": {"method.lambda_s": 0.8},
    "bn_inception": {**BN_INCEPTION, "method.tau": 24.0},
    "bn_inception-retuned": {**BN_INCEPTION, **RETUNED},
    "lite0": cars_lite0.OVERRIDES,
}
*_, get_config = base.on("cars", protocol=PAPER_PROTOCOL, variants=VARIANTS, **SECTIONS)
