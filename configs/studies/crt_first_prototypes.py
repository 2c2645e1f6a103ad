"""CRT: prototypes of the first branch, not shared with the second (Kan et al., NeurIPS 2022, Table 8), with MiT-B1.

Variants: the data sets.

    dml-jax study --study=configs/studies/crt_first_prototypes.py
    dml-jax study --study=configs/studies/crt_first_prototypes.py:omniglot
"""

from dml_jax.studies.definition import Study, grid, percent

VARIANTS = ("cub", "omniglot")
TABLE_8 = {  # by K1, with K2 = 64
    1: percent(r1=75.76, r2=84.52, r4=90.72, r8=94.78),
    4: percent(r1=75.57, r2=84.30, r4=90.56, r8=94.33),
    16: percent(r1=75.44, r2=84.25, r4=90.24, r8=94.46),
    64: percent(r1=75.96, r2=84.60, r4=90.75, r8=94.31),
}


def get_study(variant: str = "cub") -> Study:
    full = variant == "cub"
    second = 64 if full else 16
    return Study(
        title=f"CRT, prototypes of the first branch, K2 = {second}: {variant}",
        source="Paper, Table 8: K1 hardly matters.",
        rows=grid(
            "configs/cub_crt.py:mit_b1" if full else f"configs/{variant}_crt.py",
            {"method.prototypes": tuple((first, second) for first in ((1, 4, 16, 64) if full else (1, 4, 16)))},
            {(first, second): row for first, row in TABLE_8.items()} if full else None,
            {"method.sharing": "separate"},
        ),
    )
