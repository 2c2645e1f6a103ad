"""CRT: its components (Kan et al., NeurIPS 2022, Table 6), with MiT-B1.

Variants: the data sets.

    dml-jax study --study=configs/studies/crt_components.py
    dml-jax study --study=configs/studies/crt_components.py:omniglot
"""

from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "omniglot")
BASELINE = {"method.transform": "average", "method.lambda1": (1.0, 0.0), "method.lambda2": 0.0}


def get_study(variant: str = "cub") -> Study:
    file = f"configs/{variant}_crt.py"
    rows = (
        Row("CRT", f"{file}:mit_b1"),
        Row("without residuals", f"{file}:mit_b1-average"),
        Row("multi-similarity loss alone", f"{file}:mit_b1-ms"),
    )
    if variant == "omniglot":
        rows = (
            Row("CRT", file),
            Row("without residuals", file, {"method.transform": "average"}),
            Row("multi-similarity loss alone", file, BASELINE),
        )
    return Study(
        title=f"CRT, components: {variant}",
        source="Paper, Table 6: each row leaves out one component more; R@1 falls by 2.0 and by 1.7.",
        rows=rows,
    )
