"""DiVA: combinations of tasks (Milbich, Roth et al., ECCV 2020, Table 1), BN-Inception, fixed learning rate.

All rows have about 512 dimensions in total (256 on Omniglot). Variants: the data sets.

    dml-jax study --study=configs/studies/diva_tasks.py
    dml-jax study --study=configs/studies/diva_tasks.py:omniglot
"""

from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "sop", "omniglot")
ROWS = {
    "D": "discriminative", "D + DaNCE": "dance", "D + S": "shared", "D + I": "intra", "D + DaNCE + I": "dance_intra",
    "D + S + I": "shared_intra", "D + DaNCE + S": "dance_shared", "D + DaNCE + S + I": "all",
}  # fmt: skip


def get_study(variant: str = "cub") -> Study:
    prefix = f"configs/{variant}_diva.py:" + ("" if variant == "omniglot" else "bn_inception-")
    return Study(
        title=f"DiVA, combinations of tasks (discriminative, DaNCE, shared, intra-class): {variant}",
        source="Paper, Table 1: every added task raises R@1 on CUB and Cars196, not with I on SOP.",
        rows=tuple(Row(name, f"{prefix}{key}") for name, key in ROWS.items()),
    )
