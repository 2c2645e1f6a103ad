"""CRT: its components (Kan et al., NeurIPS 2022, Table 6), with MiT-B1.

One variant per data set.

    dml-jax study --study=configs/studies/crt_components.py
"""

from configs import published
from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "omniglot")


def get_study(variant: str = "cub") -> Study:
    config = "configs/cub_crt.py:mit_b1" if variant == "cub" else f"configs/{variant}_crt.py"
    without = {"method.transform": "average"}
    study = Study(
        title=f"CRT, components: {variant}",
        source="Paper, Table 6: each row leaves out one component more; R@1 falls by 2.0 and by 1.7.",
        rows=(
            Row("CRT", config),
            Row("without residuals", config, without),
            Row(
                "multi-similarity loss alone", config, {**without, "method.lambda1": (1.0, 0.0), "method.lambda2": 0.0}
            ),
        ),
    )
    return published.beside_rows(f"crt_components:{variant}", study)
