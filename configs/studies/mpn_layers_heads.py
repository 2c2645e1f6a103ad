"""MPN: message passing layers and attention heads (Seidenschwarz et al., ICML 2021, Figures 3, 4 and 17).

 On Cars196 the classifier sees the concatenated outputs of all layers, as in the authors'
code.

    dml-jax study --study=configs/studies/mpn_layers_heads.py
"""

from dml_jax.studies.definition import Study, grid

VARIANTS = ("cub", "cars", "sop", "omniglot")


def get_study(variant: str = "cub") -> Study:
    full = variant != "omniglot"
    layers, heads = ((1, 2, 3, 4), (1, 2, 4, 8, 16)) if full else ((1, 2, 4), (1, 2, 8))
    return Study(
        title=f"MPN, layers and attention heads: {variant}",
        source="Paper, Figures 3, 4 and 17: best with one layer and two heads on CUB, two and eight on Cars196; worst "
        "with four layers; on SOP, more layers or heads are worse. Values are not printed.",
        rows=grid(f"configs/{variant}_mpn.py", {"method.layers": layers, "method.heads": heads}),
    )
