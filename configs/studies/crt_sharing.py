"""CRT: weights shared by the branches or not (Kan et al., NeurIPS 2022, Table 10), with MiT-B1.

One variant per data set.

    dml-jax study --study=configs/studies/crt_sharing.py
"""

from configs import published
from dml_jax.studies.definition import Study, grid

VARIANTS = ("cub", "omniglot")


def get_study(variant: str = "cub") -> Study:
    config = "configs/cub_crt.py:mit_b1" if variant == "cub" else f"configs/{variant}_crt.py"
    study = Study(
        title=f"CRT, shared weights: {variant}",
        source="Paper, Table 10: no difference.",
        rows=grid(config, {"method.sharing": ("shared", "separate")}),
    )
    return published.beside_rows(f"crt_sharing:{variant}", study)
