"""HIST: layers of the hypergraph network (Yuan et al., MLRC 2022, Figure 2b).

The reproduction does not say what its L, 1 to 5, counts. Since its two layers (Tables 8 and 9) are those of the
authors' network, L is interpreted as the number of hidden layers plus one.

    dml-jax study --study=configs/studies/hist_layers.py
"""

from configs import published
from dml_jax.studies.definition import Study, grid

VARIANTS = ("cars", "omniglot")


def get_study(variant: str = "cars") -> Study:
    config = "configs/cars_hist.py:retuned" if variant == "cars" else f"configs/{variant}_hist.py"
    study = Study(
        title=f"HIST, hidden layers of the hypergraph network: {variant}",
        source="Reproduction, Figure 2b: with two or more hidden layers R@1 is about 3 lower; values are not printed.",
        rows=grid(config, {"method.hidden_layers": (0, 1, 2, 3, 4, 5)}),
    )
    return published.beside_rows(f"hist_layers:{variant}", study)
