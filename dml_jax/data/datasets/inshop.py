"""In-Shop Clothes Retrieval (DeepFashion): queries are searched for in a gallery."""

from dml_jax.config import Data
from dml_jax.data import prepared
from dml_jax.data.prepare.sources import Entry, Files, Options, Recipe, at, lines, locate
from dml_jax.data.split import Split
from dml_jax.errors import DataError

SPLIT = {"train": "train", "query": "test", "gallery": "gallery"}


def find(files: Files, options: Options) -> list[Entry]:
    """Reads `list_eval_partition.txt`; the images lie in `Img/`, whose archive `img.zip` is unpacked too."""
    base = locate(files, "list_eval_partition.txt", "In-Shop Clothes Retrieval")
    (announced, *_), header, *rows = lines(files, f"{base}list_eval_partition.txt")
    if header != ["image_name", "item_id", "evaluation_status"] or announced != str(len(rows)):
        raise DataError(
            f"{base}list_eval_partition.txt: announces {announced} images and has {len(rows)} lines under "
            f"{' '.join(header)!r}: this is not the file of its owners"
        )
    root = base.removesuffix("Eval/")
    entries = []
    for row in rows:
        if len(row) != 3 or row[2] not in SPLIT:
            raise DataError(f"{base}list_eval_partition.txt: {' '.join(row)!r} is not an image, an item and a status")
        file = at(files, f"{root}Img/{row[0]}" if f"{root}Img/{row[0]}" in files else root + row[0])
        entries.append(Entry(row[0], file, row[1], SPLIT[row[2]]))
    return entries


RECIPE = Recipe(
    find,
    counts={"train": (25_882, 3_997), "test": (14_218, 3_985), "gallery": (12_612, 3_985)},
    nested=True,
    home="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    citation="Liu, Luo, Qiu, Wang, Tang: DeepFashion: Powering Robust Clothes Recognition and Retrieval, CVPR 2016",
)


def load(data: Data) -> dict[str, Split]:
    """The splits "train" (25,882 images of 3,997 classes) and "test" (14,218 queries of 3,985).

    The 12,612 images of the gallery are the test split's `gallery`, and a split of their own.
    """
    return prepared.load(data.path, "inshop")
