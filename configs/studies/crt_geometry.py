"""CRT: density and spectral decay of the test embeddings (Kan et al., NeurIPS 2022, Tables 1 and 2).

The paper does not state the backbone of these tables; here it is MiT-B2, that of its main results. The page of the
study shows the spectra of both rows.

    dml-jax study --study=configs/studies/crt_geometry.py
"""

from configs import published
from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "sop", "inshop", "omniglot")
MS_ALONE = {"method.transform": "average", "method.lambda1": (1.0, 0.0), "method.lambda2": 0.0}


def get_study(variant: str = "cub") -> Study:
    file = f"configs/{variant}_crt.py"
    study = Study(
        title=f"CRT, geometry of the embeddings: {variant}",
        source="Paper, Tables 1 and 2: CRT raises the density and lowers the spectral decay on every data set.",
        rows=(Row("multi-similarity loss alone", file, MS_ALONE), Row("CRT", file)),
    )
    return published.beside_rows(f"crt_geometry:{variant}", study)
