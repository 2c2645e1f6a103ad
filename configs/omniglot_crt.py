"""CRT on Omniglot: except for the method, the same experiment as `omniglot_hist.py`.

python -m dml_jax.main --config=configs/omniglot_crt.py
"""

from dataclasses import asdict

from ml_collections import ConfigDict

from configs import omniglot_hist
from dml_jax.config import Group, Train
from dml_jax.methods import crt


def get_config() -> ConfigDict:
    config = omniglot_hist.get_config()
    config.name = "omniglot_crt"
    config.method = asdict(crt.Config(embedding_dims=(64, 128), prototypes=(16, 16), hidden_dim=64))
    # Residuals are sums over all positions, so the layers after them need small steps.
    head = Group(3e-4, weight_decay=1e-4)
    groups = {"backbone": Group(4e-3, weight_decay=1e-4), "prototypes": head, "embedding": head}
    config.train = asdict(Train(groups=groups, steps=1200, schedule="cosine", evaluate_every=600))
    return config
