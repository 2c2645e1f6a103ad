"""MPN: the equations of the authors' code, as printed, and those of a transformer.

The docstring of `dml_jax/methods/mpn.py` explains the differences; no results are published.

    dml-jax study --study=configs/studies/mpn_equations.py
"""

from dml_jax.studies.definition import Study, grid

VARIANTS = ("cub", "cars", "omniglot")


def get_study(variant: str = "cub") -> Study:
    return Study(
        title=f"MPN, equations: {variant}",
        source="The published numbers are those of the authors' code.",
        rows=grid(f"configs/{variant}_mpn.py", {"method.equations": ("authors", "transformer", "paper")}),
    )
