"""In-Shop Clothes Retrieval (DeepFashion), with separate query and gallery images.

dml-jax prepare --name=inshop --source=inshop --source=inshop/Img/img.zip --output=data/inshop
"""

from dml_jax.data import official
from dml_jax.data.files import Files, read_rows
from dml_jax.data.sources import AUTO, Options, Recipe, Table
from dml_jax.files import reading

SPLITS = {"train": "train", "query": "test", "gallery": "gallery"}
TABLE = "list_eval_partition.txt"
EXPECTED = f"Eval/{TABLE} and the images of Img/img.zip or Img/img_highres.zip"


def read(files: Files, options: Options = AUTO) -> Table:
    """Reads `list_eval_partition.txt` of the official folder; the images are in another archive.

    They may also be the larger ones of img_highres.zip, which have the same names.
    """
    table = official.find_table(files, TABLE, EXPECTED)
    with reading(table):
        rows = [  # below a number and a header
            (name, item, SPLITS[status]) for name, item, status in read_rows(files, table)[2:]
        ]
    return Table(official.find_images(files, table, rows, "img/"))


def matches(files: Files) -> bool:
    return bool(official.find_paths(files, TABLE))


RECIPE = Recipe(
    read,
    counts={"train": (25_882, 3_997), "test": (14_218, 3_985), "gallery": (12_612, 3_985)},
    home="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    citation="Liu, Luo, Qiu, Wang, Tang: DeepFashion: Powering Robust Clothes Recognition and "
    "Retrieval, CVPR 2016",
    terms="its owners give it away in a shared folder, for non-commercial research, and not at a "
    "fixed address",
    matches=matches,
)
