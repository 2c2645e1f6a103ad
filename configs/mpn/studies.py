"""MPN: the studies of its paper (Seidenschwarz et al., ICML 2021) and of its reproduction ([Re]
Learning Intra-Batch Connections), one variant per study and data set.

    dml-jax study --study=mpn:losses-cub

On Cars196, the authors' network after message passing has one layer and four heads. The network of
their other results has two layers and eight heads, and its classifier sees the concatenated outputs
of both; they do not state which of the two gave the other rows of Table 8. The networks of an
ensemble differ in the seed, and each seed of a student has a teacher of its own. The Group Loss
uses BN-Inception except on Omniglot; its settings on SOP are not known. No results are published
for `equations` (see `dml_jax/methods/mpn/method.py`) and `concatenation` with two layers.
"""

from functools import partial
from typing import Any

from configs import folder_heads, tables
from configs.papers import installed
from configs.tables import Rows
from dml_jax.lab.definition import Row, grid

APART = 1000  # between the seeds of two networks
STUDENTS = {
    "distillation": "", "distillation, KL": ":distillation_kl", "feature imitation": ":imitation",
    "relational": ":relational",
}  # fmt: skip
KINDS = ("kmeans", "ward", "spectral", "birch", "dbscan", "optics", "neighbors", "reciprocal")
RECIPROCAL = {"evaluation.refine": ("reciprocal",)}
AUXILIARY = {"method.losses": "auxiliary"}
PLACEBOS = {
    "no messages": "none",
    "uniform weights": "uniform",
    "permuted messages": "permuted",
}
BASELINES = {"Proxy-Anchor": "proxy_anchor", "multi-similarity": "multi_similarity"}
file_of = partial(folder_heads.file_of, method="mpn")
baseline = partial(folder_heads.file_of, method="baseline")


def losses(data: str) -> Rows:
    file = file_of(data)
    rows: Rows = (
        Row("auxiliary loss", file, AUXILIARY),
        Row("MPN loss", file, {"method.losses": "mpn"}),
        *(Row(text, file, {"method.messages": key}) for text, key in PLACEBOS.items()),
        *(Row(text, baseline(data, loss=key)) for text, key in BASELINES.items()),
    )
    match data:
        case "cub":
            return (*rows, Row("both losses", f"{file}:refined"))
        case "cars":
            one_layer = Row("both losses, one layer", f"{file}:refined", reported={"paper": {}})
            return (*rows, one_layer, Row("both losses", file))
    return (*rows, Row("both losses", file, RECIPROCAL))


def ensembles(data: str) -> Rows:
    def networks(name: str, file: str) -> Rows:
        return tuple(
            Row(f"{name} {number + 1}", file, {"seed": APART * number} if number else {})
            for number in range(5)
        )

    def ensemble(name: str, count: int, networks: Rows) -> Row:
        return Row(f"{count} {name}", members=tuple(row.name for row in networks[:count]))

    own = networks("network", file_of(data))
    rows = tuple(ensemble("networks", count, own) for count in (5, 4, 3, 2))
    if data in ("cub", "cars") and installed("group_loss"):
        others = networks("Group Loss network", f"configs/{data}_group_loss.py")
        own += others
        rows = tuple(ensemble("Group Loss networks", count, others) for count in (5, 2)) + rows
    return own + rows


def embedding_size(data: str) -> Rows:
    file, key = file_of(data), "method.embedding_dim"
    if data in ("omniglot", "lite0"):
        return grid(file, {key: (16, 32, 64, 128, 256)})
    return tuple(
        Row(f"{size} dimensions", file, {} if size == 512 else {key: size})
        for size in (64, 128, 256, 512, 1024)
    )


def image_size(data: str) -> Rows:
    file = file_of(data)
    if data == "omniglot":
        return tuple(
            Row(f"{s} pixels", file, {"data.image_size": s, "data.resize": s}) for s in (32, 48, 64)
        )
    return (Row("227 pixels", file), Row("256 pixels", f"{file}:large"))


def test_time(data: str) -> Rows:
    file = file_of(data)
    overrides: dict[str, Any] = {"evaluation.refine": KINDS}
    if data == "omniglot":
        overrides |= {"evaluation.refine_clusters": 318, "evaluation.refine_eps": 0.5}
    if data == "lite0":
        overrides = {
            "evaluation.refine": ("kmeans", "neighbors"),
            "evaluation.refine_clusters": 225,
        }
    rows: Rows = (Row("backbone", f"{file}:refined" if data == "cub" else file, overrides),)
    return rows + (
        (Row("backbone, one layer", f"{file}:refined", overrides),) if data == "cars" else ()
    )


def students(data: str) -> Rows:
    rows = (
        Row(name, f"configs/{data}_student.py{suffix}", {"method.teacher": "@MPN"})
        for name, suffix in STUDENTS.items()
    )
    return (Row("MPN", file_of(data)), Row("no teacher", file_of(data), AUXILIARY), *rows)


def layers_heads(data: str) -> Rows:
    small = data in ("omniglot", "lite0")
    layers, heads = ((1, 2, 4), (1, 2, 8)) if small else ((1, 2, 3, 4), (1, 2, 4, 8, 16))
    return grid(file_of(data), {"method.layers": layers, "method.heads": heads})


def batches(data: str) -> Rows:
    sizes = (5, 10) if data == "lite0" else range(5, 11)
    return tuple(
        Row(
            f"classes={classes} images={images}",
            file_of(data),
            {
                "data.sampler": "chunks",
                "data.batch_size": classes * images,
                "data.images_per_class": images,
            },
        )
        for classes in sizes
        for images in sizes
    )


def selection(data: str) -> Rows:
    """The model of the last step, and the one that is best on the test classes."""
    file = file_of(data)
    return (
        Row("last step", file),
        Row("best on test classes", file, {"train.select": "test", "train.evaluate_every": 50}),
    )


def group_loss(data: str) -> Rows:
    # On features as in `losses`, to be trained once.
    own = Row("MPN", file_of(data), RECIPROCAL if data == "lite0" else {})
    return (own, Row("Group Loss", folder_heads.file_of(data, "group_loss")))


def equations(data: str) -> Rows:
    return grid(file_of(data), {"method.equations": ("authors", "transformer", "paper")})


def concatenation(data: str) -> Rows:
    return grid(file_of(data), {"method.concatenate": (False, True)}, {"method.layers": 2})


def attention(data: str) -> Rows:
    return (Row("untrained", file_of(data), {"train.steps": 1}), Row("trained", file_of(data)))


def re_table2(_: str) -> Rows:
    return tuple(Row(f"MPN on {data}", file_of(data)) for data in ("cub", "cars", "sop", "inshop"))


def re_table3(data: str) -> Rows:
    file = file_of(data)
    if data != "cars":
        return (Row("MPN", f"{file}:refined"),)
    return (
        Row("MPN", file, RECIPROCAL),
        Row("MPN, one layer", f"{file}:refined", reported={"paper": {}}),
    )


FUNCTIONS = (
    losses, ensembles, embedding_size, image_size, test_time, students, layers_heads, batches,
    selection, group_loss, equations, concatenation, attention, re_table2, re_table3,
)  # fmt: skip
STUDIES = {made.__name__: made for made in FUNCTIONS}
VARIANTS, get_study = tables.contents("mpn", "MPN", lambda name, data: STUDIES[name](data))
