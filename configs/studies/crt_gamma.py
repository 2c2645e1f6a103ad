"""CRT: one head per prototype, or one for all (Kan et al., NeurIPS 2022, Table 7), with MiT-B1.

One variant per data set.

    dml-jax study --study=configs/studies/crt_gamma.py
"""

from configs import published
from dml_jax.studies.definition import Study, grid

VARIANTS = ("cub", "omniglot")


def get_study(variant: str = "cub") -> Study:
    config = "configs/cub_crt.py:mit_b1" if variant == "cub" else f"configs/{variant}_crt.py"
    study = Study(
        title=f"CRT, same or different Gamma: {variant}",
        source="Paper, Table 7: different heads improve R@1 by 1.6.",
        rows=grid(config, {"method.gamma": ("single", "per_prototype")}),
    )
    return published.beside_rows(f"crt_gamma:{variant}", study)
