"""DiVA on Omniglot: everything but the method as in `omniglot_hist.py`; 16 dimensions for each of the four tasks.

Two views of each image are read for the key network, so a step takes longer than the other methods'.

    python -m dml_jax.main --config=configs/omniglot_diva.py
"""

from dataclasses import asdict

from ml_collections import ConfigDict

from configs import omniglot_hist
from dml_jax.config import Group, Train
from dml_jax.methods import diva


def get_config() -> ConfigDict:
    config = omniglot_hist.get_config()
    config.name = "omniglot_diva"
    config.method = asdict(diva.Config(embedding_dim=16, temperature=0.1, queue_batches=15, rho=(15.0,), psi_dim=64))
    groups = {
        "model": Group(1e-3, weight_decay=1e-4),
        "beta": Group(5e-3),
        "psi": Group(1e-3),
        "temperature": Group(1e-3),
    }
    config.train = asdict(Train(groups=groups, steps=1200, schedule="cosine", evaluate_every=300))
    return config
