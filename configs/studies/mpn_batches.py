"""MPN: classes per batch and images per class (Seidenschwarz et al., ICML 2021, appendix H).

The sampler is the authors' with fixed numbers.

    dml-jax study --study=configs/studies/mpn_batches.py
"""

from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "omniglot")


def get_study(variant: str = "cub") -> Study:
    rows = tuple(
        Row(
            f"classes={classes} images={images}",
            f"configs/{variant}_mpn.py",
            {"data.sampler": "mpn", "data.batch_size": classes * images, "data.images_per_class": images},
        )
        for classes in range(5, 11)
        for images in range(5, 11)
    )
    return Study(
        title=f"MPN, composition of the batches: {variant}",
        source="Paper, Figures 18 and 19: at most 2.8 (CUB) and 3.4 (Cars196) below the best; values are not printed.",
        rows=rows,
    )
