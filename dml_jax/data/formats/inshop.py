"""In-Shop Clothes Retrieval (DeepFashion), with separate query and gallery images.

dml-jax prepare --name=inshop --source=inshop --source=inshop/Img/img.zip --output=data/inshop
"""

from dml_jax.data.prepare.sources import SPLIT_NAMES, Entry, Files, Options, Recipe, file_at, find_folder, read_rows
from dml_jax.files import reading


def find(files: Files, options: Options) -> list[Entry]:
    """Reads `list_eval_partition.txt` of the official folder; images are in `Img/img.zip`, a source of its own."""
    base = find_folder(files, "list_eval_partition.txt", "In-Shop Clothes Retrieval")
    root = base.removesuffix("Eval/")
    entries = []
    with reading(f"{base}list_eval_partition.txt"):
        for name, item, status in read_rows(files, f"{base}list_eval_partition.txt")[2:]:  # below a number and a header
            file = file_at(files, f"{root}Img/{name}" if f"{root}Img/{name}" in files else root + name)
            entries.append(Entry(name, file, item, SPLIT_NAMES[status]))
    return entries


RECIPE = Recipe(
    find,
    counts={"train": (25_882, 3_997), "test": (14_218, 3_985), "gallery": (12_612, 3_985)},
    home="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    citation="Liu, Luo, Qiu, Wang, Tang: DeepFashion: Powering Robust Clothes Recognition and Retrieval, CVPR 2016",
    terms="its owners give it away in a shared folder, for non-commercial research, and not at a fixed address",
)
