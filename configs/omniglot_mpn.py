"""MPN on Omniglot: except for the method, the same experiment as `omniglot_hist.py`.

python -m dml_jax.main --config=configs/omniglot_mpn.py
"""

from dataclasses import asdict

from ml_collections import ConfigDict

from configs import omniglot_hist
from dml_jax.config import Group, Train
from dml_jax.methods import mpn


def get_config() -> ConfigDict:
    config = omniglot_hist.get_config()
    config.name = "omniglot_mpn"
    config.method = asdict(mpn.Config(embedding_dim=64, heads=2, temperature=0.2, pooling="avg+max"))
    groups = dict.fromkeys(mpn.GROUPS, Group(4e-3, weight_decay=1e-4)) | {"mpn": Group(2e-3, weight_decay=1e-4)}
    config.train = asdict(Train(groups=groups, steps=1200, schedule="cosine", evaluate_every=600))
    return config
