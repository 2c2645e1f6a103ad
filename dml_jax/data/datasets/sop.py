"""Stanford Online Products: 22,634 articles offered for sale, split by its owners."""

from dml_jax.config import Data
from dml_jax.data import prepared
from dml_jax.data.prepare.sources import Entry, Files, Options, Recipe, at, lines, locate
from dml_jax.data.split import Split
from dml_jax.errors import DataError


def find(files: Files, options: Options) -> list[Entry]:
    """Reads `Ebay_train.txt` and `Ebay_test.txt` of the official archive, Stanford_Online_Products.zip."""
    base = locate(files, "Ebay_train.txt", "Stanford Online Products")
    entries = []
    for split in ("train", "test"):
        header, *rows = lines(files, f"{base}Ebay_{split}.txt")
        if header != ["image_id", "class_id", "super_class_id", "path"]:
            raise DataError(f"{base}Ebay_{split}.txt: begins with {' '.join(header)!r}, not with its column names")
        for row in rows:
            if len(row) != 4 or not row[1].isdigit():
                raise DataError(f"{base}Ebay_{split}.txt: {' '.join(row)!r} are not four columns")
            entries.append(Entry(row[3], at(files, base + row[3]), f"{int(row[1]):05d}", split))
    return entries


RECIPE = Recipe(
    find,
    counts={"train": (59_551, 11_318), "test": (60_502, 11_316)},
    nested=True,
    home="https://cvgl.stanford.edu/projects/lifted_struct/",
    citation="Song, Xiang, Jegelka, Savarese: Deep Metric Learning via Lifted Structured Feature Embedding, CVPR 2016",
)


def load(data: Data) -> dict[str, Split]:
    """The splits "train" (59,551 images of 11,318 classes) and "test" (60,502 of 11,316)."""
    return prepared.load(data.path, "sop")
