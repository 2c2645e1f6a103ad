"""MPN: the studies of its paper (Seidenschwarz et al., ICML 2021) and of its reproduction ([Re]
Learning Intra-Batch Connections), one variant per study and data set.

    dml-jax study --study=mpn:losses-cub

On Cars196, the authors' network after message passing has one layer and four heads. The network of
their other results has two layers and eight heads, and its classifier sees the concatenated outputs
of both; they do not state which of the two gave the other rows of Table 8. The networks of an
ensemble differ in the seed, and each seed of a student has its own teacher. The Group Loss
uses BN-Inception except on Omniglot; its settings on SOP are not known. No results are published
for `equations` (see `dml_jax/methods/mpn/method.py`) and `concatenation` with two layers.
"""

from functools import partial
from itertools import product
from typing import Any

from configs import folder_heads, tables
from configs.papers import installed
from configs.tables import Rows
from dml_jax.lab.definition import Row, grid

PAPER = ("cub", "cars", "sop", "inshop")
APART = 1000  # between the seeds of two networks
STUDENTS = {
    "distillation": "", "distillation, KL": ":distillation_kl", "feature imitation": ":imitation",
    "relational": ":relational",
}  # fmt: skip
KINDS = ("kmeans", "ward", "spectral", "birch", "dbscan", "optics", "neighbors", "reciprocal")
RECIPROCAL = {"evaluation.refine": ("reciprocal",)}
AUXILIARY = {"method.losses": "auxiliary"}
PLACEBOS = {"no messages": "none", "uniform weights": "uniform", "permuted messages": "permuted"}
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


def test_time(data: str) -> Rows:
    file = file_of(data)
    overrides: dict[str, Any] = {"evaluation.refine": KINDS}
    if data == "omniglot":
        overrides |= {"method.clusters": 318, "method.eps": 0.5}
    if data == "lite0":
        kinds = ("kmeans", "neighbors")
        overrides = {"evaluation.refine": kinds, "method.clusters": 225}
    row = Row("backbone", f"{file}:refined" if data == "cub" else file, overrides)
    one_layer = Row("backbone, one layer", f"{file}:refined", overrides)
    return (row, one_layer) if data == "cars" else (row,)


def batches(data: str) -> Rows:
    sizes = (5, 10) if data == "lite0" else range(5, 11)
    rows = []
    for classes, images in product(sizes, sizes):
        batch = {"data.batch_size": classes * images, "data.images_per_class": images}
        name = f"classes={classes} images={images}"
        rows.append(Row(name, file_of(data), {"data.sampler": "chunks", **batch}))
    return tuple(rows)


def rows_of(name: str, data: str) -> Rows:
    file, small = file_of(data), data in ("omniglot", "lite0")
    refined, dimension = f"{file}:refined", "method.embedding_dim"
    match name:
        case "losses":
            return losses(data)
        case "ensembles":
            return ensembles(data)
        case "test_time":
            return test_time(data)
        case "batches":
            return batches(data)
        case "embedding_size" if small:
            return grid(file, {dimension: (16, 32, 64, 128, 256)})
        case "embedding_size":
            sizes = {size: {dimension: size} for size in (64, 128, 256)}
            sizes |= {512: {}, 1024: {dimension: 1024}}
            return tuple(Row(f"{size} dimensions", file, made) for size, made in sizes.items())
        case "image_size" if small:
            sides = {side: {"data.image_size": side, "data.resize": side} for side in (32, 48, 64)}
            return tuple(Row(f"{side} pixels", file, made) for side, made in sides.items())
        case "image_size":
            return (Row("227 pixels", file), Row("256 pixels", f"{file}:large"))
        case "students":
            own = f"configs/{data}_student.py"
            rows = (
                Row(key, own + end, {"method.teacher": "@MPN"}) for key, end in STUDENTS.items()
            )
            return (Row("MPN", file), Row("no teacher", file, AUXILIARY), *rows)
        case "layers_heads":
            layers, heads = ((1, 2, 4), (1, 2, 8)) if small else ((1, 2, 3, 4), (1, 2, 4, 8, 16))
            return grid(file, {"method.layers": layers, "method.heads": heads})
        case "selection":  # the last model, and the best one on the test classes
            best = {"train.select": "test", "train.evaluate_every": 50}
            return (Row("last step", file), Row("best on test classes", file, best))
        case "group_loss":
            # On features as in `losses`, to be trained once.
            mpn = Row("MPN", file, RECIPROCAL if data == "lite0" else {})
            return (mpn, Row("Group Loss", folder_heads.file_of(data, "group_loss")))
        case "equations":
            return grid(file, {"method.equations": ("authors", "transformer", "paper")})
        case "concatenation":
            return grid(file, {"method.concatenate": (False, True)}, {"method.layers": 2})
        case "attention":
            return (Row("untrained", file, {"train.steps": 1}), Row("trained", file))
        case "re_table2":
            return tuple(Row(f"MPN on {each}", file_of(each)) for each in PAPER)
        case "re_table3" if data == "cars":
            one_layer = Row("MPN, one layer", refined, reported={"paper": {}})
            return (Row("MPN", file, RECIPROCAL), one_layer)
        case "re_table3":
            return (Row("MPN", refined),)
    raise KeyError(name)


VARIANTS, get_study = tables.contents("mpn", "MPN", rows_of)
