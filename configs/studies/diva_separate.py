"""DiVA: without decorrelation, and as separate models (Milbich, Roth et al., ECCV 2020, Table 3).

The embeddings of the separate models are weighted as those of DiVA. One variant per data set; the paper's is CUB.

    dml-jax study --study=configs/studies/diva_separate.py
"""

from configs import published
from configs.recipes import diva
from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "omniglot")
MODELS = {  # in the order of the weights
    "separate_discriminative": "discriminative",
    "separate_dance": "selfsimilarity",
    "separate_shared": "shared",
    "separate_intra": "intra",
}
ONE = diva.alpha(1.0)


def get_study(variant: str = "cub") -> Study:
    config, common, dimensions, _ = base = diva.ablations(variant)
    auxiliary = 1.0 if variant == "omniglot" else 2.0  # weight of the embeddings, as in DiVA
    models = tuple(
        Row(name, config, {**base.tasks(task, embedding_dim=dimensions // 4), **ONE}) for name, task in MODELS.items()
    )
    study = Study(
        title=f"DiVA, no decorrelation and separate models: {variant}",
        source="Paper, Table 3: decorrelation gains 0.8 points of R@1; separate models are far worse.",
        rows=(
            *models,
            Row("separate models", members=tuple(MODELS), weights=(1.0, auxiliary, auxiliary, auxiliary)),
            Row("baseline", config, base.tasks("discriminative")),
            Row("no decorrelation", config, {**common, "method.directions": ()}),
            Row("DiVA", config, common),
        ),
    )
    return published.beside_rows(f"diva_separate:{variant}", study)
