"""Stanford Online Products: images of 22,634 products, in the official split."""

from dml_jax.data import official
from dml_jax.data.files import Files, read_rows
from dml_jax.data.sources import AUTO, Options, Recipe, Table
from dml_jax.files import reading
from dml_jax.remote.downloads import Download

EXPECTED = "Ebay_train.txt, Ebay_test.txt and the image folders bicycle_final to toaster_final"


def read(files: Files, options: Options = AUTO) -> Table:
    """Reads `Ebay_train.txt` and `Ebay_test.txt` of the official archive,
    Stanford_Online_Products.zip, in any folder."""
    entries = []
    for split in ("train", "test"):
        table = official.find_table(files, f"Ebay_{split}.txt", EXPECTED)
        with reading(table):
            lines = read_rows(files, table)[1:]
            rows = [(path, f"{int(label):05d}", split) for _, label, _, path in lines]
        entries += official.find_images(files, table, rows)
    return Table(entries)


def matches(files: Files) -> bool:
    return bool(official.find_paths(files, "Ebay_train.txt", "Ebay_test.txt"))


RECIPE = Recipe(
    read,
    counts={"train": (59_551, 11_318), "test": (60_502, 11_316)},
    home="https://cvgl.stanford.edu/projects/lifted_struct/",
    citation="Song, Xiang, Jegelka, Savarese: Deep Metric Learning via Lifted Structured Feature "
    "Embedding, CVPR 2016",
    # Length and SHA-256 as in tensorflow_datasets, which downloads them by FTP.
    downloads=(
        Download(
            "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
            3_083_860_082,
            "b04fa78210e69fab050ce73939550e1cd0f96890bdd98ec9fee732c3b756ef48",
        ),
    ),
    terms="no licence is known; the photographs are from eBay and belong to their owners",
    matches=matches,
)
