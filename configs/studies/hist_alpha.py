"""HIST: the scale alpha of the hyperedges' weights, including negative values (Yuan et al., MLRC 2022, Figure 2c).

Only if alpha is positive do other classes weigh less than a sample's own class.

    dml-jax study --study=configs/studies/hist_alpha.py
"""

from configs import published
from dml_jax.studies.definition import Study, grid

VARIANTS = ("cars", "omniglot")


def get_study(variant: str = "cars") -> Study:
    config = "configs/cars_hist.py:retuned" if variant == "cars" else f"configs/{variant}_hist.py"
    study = Study(
        title=f"HIST, alpha: {variant}",
        source="Reproduction, Figure 2c: the results hardly depend on a positive alpha; values are not printed.",
        rows=grid(config, {"method.alpha": (-1.0, -0.5, 0.0, 0.5, 0.9, 0.95, 1.0, 1.1, 1.2, 2.0)}),
    )
    return published.beside_rows(f"hist_alpha:{variant}", study)
