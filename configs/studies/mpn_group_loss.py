"""MPN compared with the Group Loss (Seidenschwarz et al., ICML 2021, Tables 1 and 4, Figure 8).

 The Group Loss uses BN-Inception except on Omniglot. `dml-jax analyse` draws Figure 8, the
recall on training classes.

    dml-jax study --study=configs/studies/mpn_group_loss.py
"""

from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "omniglot")


def get_study(variant: str = "cub") -> Study:
    return Study(
        title=f"MPN and the Group Loss: {variant}",
        source="Paper, Tables 1 and 4: R@1 is 4.8 (CUB) and 2.5 (Cars196) higher than with the Group Loss.",
        rows=(Row("MPN", f"configs/{variant}_mpn.py"), Row("Group Loss", f"configs/{variant}_group_loss.py")),
    )
