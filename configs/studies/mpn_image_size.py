"""MPN: size of the images (Seidenschwarz et al., ICML 2021, Table 7).

One variant per data set.

    dml-jax study --study=configs/studies/mpn_image_size.py
"""

from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "sop", "inshop", "omniglot")


def get_study(variant: str = "cub") -> Study:
    file = f"configs/{variant}_mpn.py"
    rows: tuple[Row, ...] = (Row("227 pixels", file), Row("256 pixels", f"{file}:large"))
    if variant == "omniglot":
        sizes = (32, 48, 64)
        rows = tuple(Row(f"{s} pixels", file, {"data.image_size": s, "data.resize": s}) for s in sizes)
    return Study(
        title=f"MPN, size of the images: {variant}",
        source="Paper, Table 7: larger images are better, by 0.1 (In-Shop) to 2.1 points of R@1 (Cars196).",
        rows=rows,
    )
