"""CRT: number of prototypes, shared by both branches (Kan et al., NeurIPS 2022, Table 9), with MiT-B1.

Variants: the data sets.

    dml-jax study --study=configs/studies/crt_prototypes.py
    dml-jax study --study=configs/studies/crt_prototypes.py:omniglot
"""

from dml_jax.studies.definition import Study, grid, percent

VARIANTS = ("cub", "omniglot")
TABLE_9 = {
    1: percent(r1=74.26, r2=84.30, r4=89.82, r8=93.96),
    4: percent(r1=74.54, r2=84.03, r4=90.06, r8=94.01),
    16: percent(r1=74.63, r2=83.74, r4=90.24, r8=94.02),
    64: percent(r1=75.95, r2=84.47, r4=90.26, r8=94.51),
    100: percent(r1=75.15, r2=84.35, r4=90.36, r8=94.31),
}


def get_study(variant: str = "cub") -> Study:
    full = variant == "cub"
    numbers = tuple(TABLE_9) if full else (1, 4, 16, 64)
    return Study(
        title=f"CRT, prototypes of both branches: {variant}",
        source="Paper, Table 9: R@1 grows up to 64 prototypes.",
        rows=grid(
            "configs/cub_crt.py:mit_b1" if full else f"configs/{variant}_crt.py",
            {"method.prototypes": tuple((number, number) for number in numbers)},
            {(number, number): row for number, row in TABLE_9.items()} if full else None,
        ),
    )
