"""DiVA: without decorrelation, and as separate models (Milbich, Roth et al., ECCV 2020, Table 3).

The embeddings of the separate models are weighted as those of DiVA. Variants: the data sets; the paper's is CUB.

    dml-jax study --study=configs/studies/diva_separate.py
    dml-jax study --study=configs/studies/diva_separate.py:omniglot
"""

from dml_jax.studies.definition import Row, Study, percent

VARIANTS = ("cub", "cars", "omniglot")
MODELS = ("separate_discriminative", "separate_dance", "separate_shared", "separate_intra")  # in the order of weights
WEIGHTS = {"cub": (1.0, 2.0, 2.0, 2.0), "cars": (1.0, 2.0, 2.0, 2.0), "omniglot": (1.0, 1.0, 1.0, 1.0)}


def get_study(variant: str = "cub") -> Study:
    prefix = f"configs/{variant}_diva.py:" + ("" if variant == "omniglot" else "bn_inception-")
    separate = Row(
        "separate models", members=MODELS, weights=WEIGHTS[variant],
        reported={"paper": percent(r1=48.7)} if variant == "cub" else {},
    )  # fmt: skip
    return Study(
        title=f"DiVA, no decorrelation and separate models: {variant}",
        source="Paper, Table 3: decorrelation gains 0.8 points of R@1; separate models are far worse.",
        rows=(
            *(Row(name, f"{prefix}{name}") for name in MODELS),
            separate,
            Row("baseline", f"{prefix}discriminative"),
            Row("no decorrelation", f"{prefix}no_decorrelation"),
            Row("DiVA", f"{prefix}all"),
        ),
    )
