"""MPN: size of the embedding (Seidenschwarz et al., ICML 2021, Figure 5 and Table 5).

One variant per data set.

    dml-jax study --study=configs/studies/mpn_embedding_size.py
"""

from configs import published
from dml_jax.studies.definition import Row, Study, grid

VARIANTS = ("cub", "cars", "sop", "inshop", "omniglot")


def get_study(variant: str = "cub") -> Study:
    file, key = f"configs/{variant}_mpn.py", "method.embedding_dim"
    sizes = (64, 128, 256, 512, 1024)
    rows = tuple(Row(f"{size} dimensions", file, {} if size == 512 else {key: size}) for size in sizes)
    if variant == "omniglot":
        rows = grid(file, {key: (16, 32, 64, 128, 256)})
    study = Study(
        title=f"MPN, size of the embedding: {variant}",
        source="Paper, Table 5: R@1 grows with the size on CUB and Cars196; In-Shop is best at 512.",
        rows=rows,
    )
    return published.beside_rows(f"mpn_embedding_size:{variant}", study)
