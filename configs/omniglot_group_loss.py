"""The Group Loss on Omniglot: the same experiment as `omniglot_hist.py` except for the method.

One of the four images per class is an anchor, and the priors are sharper than for a pretrained network.

    python -m dml_jax.main --config=configs/omniglot_group_loss.py
"""

from ml_collections import ConfigDict

from configs.base import experiment
from configs.omniglot_hist import BACKBONE, DATA, EVALUATION
from dml_jax.config import Group, Train
from dml_jax.methods import group_loss


def get_config() -> ConfigDict:
    return experiment(
        "omniglot_group_loss",
        data=DATA,
        backbone=BACKBONE,
        method=group_loss.Config(embedding_dim=64, anchors=1, temperature=4.0),
        train=Train(
            groups=dict.fromkeys(group_loss.GROUPS, Group(4e-3, weight_decay=1e-4)),
            steps=1200,
            schedule="cosine",
            evaluate_every=600,
        ),
        evaluation=EVALUATION,
    )
