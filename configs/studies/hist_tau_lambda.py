"""HIST: temperature scale tau and weight lambda_s (Yuan et al., MLRC 2022, Figure 3b).

One variant per data set.

    dml-jax study --study=configs/studies/hist_tau_lambda.py
"""

from configs import published
from dml_jax.studies.definition import Study, grid

VARIANTS = ("cars", "omniglot")


def get_study(variant: str = "cars") -> Study:
    full = variant == "cars"
    taus = (8.0, 16.0, 24.0, 32.0) if full else (2.5, 5.0, 10.0, 20.0)
    lambdas = (0.6, 1.0, 1.5, 2.0) if full else (0.6, 1.0, 2.0)
    study = Study(
        title=f"HIST, tau and lambda_s: {variant}",
        source="Reproduction, Figure 3b: consistent from tau = 16 on, where lambda_s matters little.",
        rows=grid(
            "configs/cars_hist.py:retuned" if full else f"configs/{variant}_hist.py",
            {"method.tau": taus, "method.lambda_s": lambdas},
        ),
    )
    return published.beside_rows(f"hist_tau_lambda:{variant}", study)
