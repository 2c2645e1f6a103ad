"""CRT on Cars196: MiT-B2, 128-d (Kan, Liang, Li, Cen, Wang, He, NeurIPS 2022).

    python -m dml_jax.main --config=configs/cars_crt.py                      clean protocol
    python -m dml_jax.main --config=configs/cars_crt.py --protocol=paper     best epoch on the test set
    python -m dml_jax.main --config=configs/cars_crt.py:resnet50             another network

Published: R@1 91.16 (Table 3); how the epoch was selected is not stated. Its ablations are studies,
configs/studies/crt_*.py; all numbers: configs/published.csv. Cost: not published. For the variants, and the values
chosen where the paper is silent, see configs/recipes/crt.py.
"""

from ml_collections import ConfigDict

from configs.base import experiment
from configs.recipes.crt import MIT_B2, VARIANTS
from configs.recipes.crt import PAPER_PROTOCOL as PAPER_PROTOCOL
from dml_jax.config import Data, Evaluation, Group, Train
from dml_jax.methods import crt


def get_config(variant: str = "") -> ConfigDict:
    return experiment(
        "cars_crt",
        variant,
        VARIANTS,
        data=Data(
            name="cars", path="data/cars", sampler="ms", batch_size=80, images_per_class=5, flip=0.5,
            resize=256, resize_first=True, crop="random_resized", crop_scale=(0.16, 1.0), image_size=227,
        ),
        backbone=MIT_B2,
        method=crt.Config(embedding_dims=(128, 1024), prototypes=(64, 64), lambda1=(1.0, 0.1), lambda2=0.9),
        train=Train(
            groups=dict.fromkeys(crt.GROUPS, Group(3e-5, weight_decay=5e-4)),
            optimizer="adam",
            epochs=40,
            schedule="step", milestones=(16, 32), gamma=0.1,
            checkpoint_every=1000,
        ),
        evaluation=Evaluation(ks=(1, 2, 4, 8)),
    )  # fmt: skip
