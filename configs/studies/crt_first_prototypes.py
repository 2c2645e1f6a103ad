"""CRT: prototypes of the first branch, not shared with the second (Kan et al., NeurIPS 2022, Table 8), with MiT-B1.

One variant per data set.

    dml-jax study --study=configs/studies/crt_first_prototypes.py
"""

from configs import published
from dml_jax.studies.definition import Study, grid

VARIANTS = ("cub", "omniglot")


def get_study(variant: str = "cub") -> Study:
    full = variant == "cub"
    second = 64 if full else 16
    study = Study(
        title=f"CRT, prototypes of the first branch, K2 = {second}: {variant}",
        source="Paper, Table 8: K1 hardly matters.",
        rows=grid(
            "configs/cub_crt.py:mit_b1" if full else f"configs/{variant}_crt.py",
            {"method.prototypes": tuple((first, second) for first in ((1, 4, 16, 64) if full else (1, 4, 16)))},
            {"method.sharing": "separate"},
        ),
    )
    return published.beside_rows(f"crt_first_prototypes:{variant}", study)
