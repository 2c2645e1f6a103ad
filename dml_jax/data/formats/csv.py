"""Custom images listed in a table with the columns path, label, and optionally split (train, val, test) and role.

    path,label,split,role,shop
    images/1.jpg,oak,train,,north
    images/7.jpg,elm,test,query,north
    images/8.jpg,elm,test,gallery,south

Paths are relative to the folder of the table. Without a split column, the classes are split into training and test.
Other columns, such as shop, are kept as metadata and exported with the embeddings.
"""

import csv
import io

from dml_jax.data.formats.folder import test_classes
from dml_jax.data.prepare.sources import SPLIT_NAMES, Entry, Files, Options, Recipe, file_at
from dml_jax.errors import DataError
from dml_jax.files import reading

USED = ("path", "label", "split", "role")  # all other columns are metadata
SPLIT = {(name, ""): SPLIT_NAMES[name] for name in ("train", "val", "validation", "test")}
SPLIT |= {("test", role): SPLIT_NAMES[role] for role in ("query", "gallery")}


def find(files: Files, options: Options) -> list[Entry]:
    """Reads the only .csv file among the files."""
    tables = [path for path in files if path.lower().endswith(".csv")]
    if len(tables) != 1:
        found = f"{len(tables)} .csv files ({', '.join(tables[:3])})" if tables else "no .csv file"
        raise DataError(f"found {found}, exactly one is needed; give it as --source")
    base = tables[0].rpartition("/")[0]
    with reading(tables[0], "write it as a table in UTF-8"):
        text = files[tables[0]].read().decode("utf-8-sig")
        table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        rows = list(table)
    columns = table.fieldnames or ()
    if not {"path", "label"} <= set(columns) or "" in columns or len(set(columns)) < len(columns):
        raise DataError(
            f"{tables[0]}: has the columns {', '.join(columns)}; must have path, label[, split, role], once"
        )
    tested = test_classes({row["label"] for row in rows if row["label"]}, options.test_share)
    entries = []
    for number, row in enumerate(rows, start=2):
        path, label = row["path"], row["label"]
        given = (row.get("split") or ("test" if label in tested else "train"), row.get("role") or "")
        if not path or not label or None in row or given not in SPLIT:
            raise DataError(
                f"{tables[0]}, line {number}: needs a path, a label, no further columns, and the split train, val or "
                "test, the latter with the role query or gallery, if any"
            )
        metadata = {name: row[name] for name in columns if name not in USED}
        entries.append(Entry(path, file_at(files, f"{base}/{path}" if base else path), label, SPLIT[given], metadata))
    return entries


RECIPE = Recipe(find)
