"""The Group Loss on Omniglot: except for the method, the same experiment as `omniglot_hist.py`.

One of the four images per class is an anchor, and the priors are sharper than for a pretrained network.

    python -m dml_jax.main --config=configs/omniglot_group_loss.py
"""

from dataclasses import asdict

from ml_collections import ConfigDict

from configs import omniglot_hist
from dml_jax.config import Group, Train
from dml_jax.methods import group_loss


def get_config() -> ConfigDict:
    config = omniglot_hist.get_config()
    config.name = "omniglot_group_loss"
    config.method = asdict(group_loss.Config(embedding_dim=64, anchors=1, temperature=4.0))
    groups = dict.fromkeys(group_loss.GROUPS, Group(4e-3, weight_decay=1e-4))
    config.train = asdict(Train(groups=groups, steps=1200, schedule="cosine", evaluate_every=600))
    return config
