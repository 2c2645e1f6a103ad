"""MPN with two layers: classifying the last layer's output, or the outputs of both layers.

The authors' code concatenates them on Cars196 only; the paper does not mention this and gives no results.

    dml-jax study --study=configs/studies/mpn_concatenation.py
"""

from dml_jax.studies.definition import Study, grid

VARIANTS = ("cars", "cub", "omniglot")


def get_study(variant: str = "cars") -> Study:
    file = f"configs/{variant}_mpn.py"
    return Study(
        title=f"MPN with two layers, concatenation of their outputs: {variant}",
        source="The published numbers on Cars196 are with concatenation.",
        rows=grid(file, {"method.concatenate": (False, True)}, overrides={"method.layers": 2}),
    )
