"""CRT: weights shared by the branches or not (Kan et al., NeurIPS 2022, Table 10), with MiT-B1.

Variants: the data sets.

    dml-jax study --study=configs/studies/crt_sharing.py
    dml-jax study --study=configs/studies/crt_sharing.py:omniglot
"""

from dml_jax.studies.definition import Study, grid, percent

VARIANTS = ("cub", "omniglot")
TABLE_10 = {
    "shared": percent(r1=75.95, r2=84.47, r4=90.26, r8=94.51),
    "separate": percent(r1=75.96, r2=84.60, r4=90.75, r8=94.31),
}


def get_study(variant: str = "cub") -> Study:
    config = "configs/cub_crt.py:mit_b1" if variant == "cub" else f"configs/{variant}_crt.py"
    reported = TABLE_10 if variant == "cub" else None
    return Study(
        title=f"CRT, shared weights: {variant}",
        source="Paper, Table 10: no difference.",
        rows=grid(config, {"method.sharing": ("shared", "separate")}, reported),
    )
