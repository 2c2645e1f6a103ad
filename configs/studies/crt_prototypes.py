"""CRT: number of prototypes, shared by both branches (Kan et al., NeurIPS 2022, Table 9), with MiT-B1.

One variant per data set.

    dml-jax study --study=configs/studies/crt_prototypes.py
"""

from configs import published
from dml_jax.studies.definition import Study, grid

VARIANTS = ("cub", "omniglot")


def get_study(variant: str = "cub") -> Study:
    full = variant == "cub"
    numbers = (1, 4, 16, 64, 100) if full else (1, 4, 16, 64)
    study = Study(
        title=f"CRT, prototypes of both branches: {variant}",
        source="Paper, Table 9: R@1 grows up to 64 prototypes.",
        rows=grid(
            "configs/cub_crt.py:mit_b1" if full else f"configs/{variant}_crt.py",
            {"method.prototypes": tuple((number, number) for number in numbers)},
        ),
    )
    return published.beside_rows(f"crt_prototypes:{variant}", study)
