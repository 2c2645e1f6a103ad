"""CRT: one head per prototype, or one for all (Kan et al., NeurIPS 2022, Table 7), with MiT-B1.

Variants: the data sets.

    dml-jax study --study=configs/studies/crt_gamma.py
    dml-jax study --study=configs/studies/crt_gamma.py:omniglot
"""

from dml_jax.studies.definition import Study, grid, percent

VARIANTS = ("cub", "omniglot")
TABLE_7 = {
    "single": percent(r1=74.34, r2=83.59, r4=90.23, r8=94.14),
    "per_prototype": percent(r1=75.95, r2=84.47, r4=90.26, r8=94.51),
}


def get_study(variant: str = "cub") -> Study:
    config = "configs/cub_crt.py:mit_b1" if variant == "cub" else f"configs/{variant}_crt.py"
    reported = TABLE_7 if variant == "cub" else None
    return Study(
        title=f"CRT, same or different Gamma: {variant}",
        source="Paper, Table 7: different heads improve R@1 by 1.6.",
        rows=grid(config, {"method.gamma": ("single", "per_prototype")}, reported),
    )
