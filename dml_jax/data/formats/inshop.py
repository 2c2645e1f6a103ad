"""In-Shop Clothes Retrieval (DeepFashion), with separate query and gallery images.

dml-jax prepare --name=inshop --source=inshop --source=inshop/Img/img.zip --output=data/inshop
"""

from dml_jax.config import Data
from dml_jax.data import store
from dml_jax.data.prepare.sources import Entry, Files, Options, Recipe, file_at, find_folder, read_rows
from dml_jax.data.split import Split
from dml_jax.errors import DataError

SPLIT = {"train": "train", "query": "test", "gallery": "gallery"}


def find(files: Files, options: Options) -> list[Entry]:
    """Reads `list_eval_partition.txt` of the official folder; images are in `Img/img.zip`, a source of its own."""
    base = find_folder(files, "list_eval_partition.txt", "In-Shop Clothes Retrieval")
    (announced, *_), header, *rows = read_rows(files, f"{base}list_eval_partition.txt")
    if header != ["image_name", "item_id", "evaluation_status"] or announced != str(len(rows)):
        raise DataError(
            f"{base}list_eval_partition.txt: announces {announced} images and has {len(rows)} rows under "
            f"{' '.join(header)!r}; use the official file"
        )
    root = base.removesuffix("Eval/")
    entries = []
    for row in rows:
        if len(row) != 3 or row[2] not in SPLIT:
            raise DataError(f"{base}list_eval_partition.txt: {' '.join(row)!r} is not an image, an item and a status")
        file = file_at(files, f"{root}Img/{row[0]}" if f"{root}Img/{row[0]}" in files else root + row[0])
        entries.append(Entry(row[0], file, row[1], SPLIT[row[2]]))
    return entries


RECIPE = Recipe(
    find,
    counts={"train": (25_882, 3_997), "test": (14_218, 3_985), "gallery": (12_612, 3_985)},
    home="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    citation="Liu, Luo, Qiu, Wang, Tang: DeepFashion: Powering Robust Clothes Recognition and Retrieval, CVPR 2016",
    terms="its owners give it away in a shared folder, for non-commercial research, and not at a fixed address",
)


def load(data: Data) -> dict[str, Split]:
    """The splits "train" (25,882 images of 3,997 classes) and "test" (14,218 queries of 3,985 classes).

    The gallery (12,612 images) is both `splits["test"].gallery` and a split of its own, "gallery".
    """
    return store.load(data, "inshop")
