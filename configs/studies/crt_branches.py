"""CRT with MiT-B2: both branches (Kan et al., NeurIPS 2022, Tables 3 and 4).

The paper tests the first branch, with 128 dimensions; for the second, with 1,024, no results are published. One variant
per data set.

    dml-jax study --study=configs/studies/crt_branches.py
"""

from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "sop", "inshop", "omniglot")


def get_study(variant: str = "cub") -> Study:
    file = f"configs/{variant}_crt.py"
    return Study(
        title=f"CRT, both branches: {variant}",
        source="Paper, Tables 3 (CUB, Cars196) and 4 (SOP, In-Shop).",
        rows=(Row("branch 1", file), Row("branch 2", file, {"method.tested_branch": "branch2"})),
    )
