"""Custom images listed in a table with the columns path, label, and optionally split (train, val,
test) and role.

    path,label,split,role,shop
    images/1.jpg,oak,train,,north
    images/7.jpg,elm,test,query,north
    images/8.jpg,elm,test,gallery,south

Paths are relative to the folder of the table, see `files.located`. Without a split column, the
classes are split into training and test.
Other columns, such as shop, are kept as metadata and exported with the embeddings.
"""

import csv
import io

from dml_jax.data.files import Entry, Files, file_at, located
from dml_jax.data.prepare.sources import Options, Recipe
from dml_jax.errors import DataError
from dml_jax.files import reading

USED = ("path", "label", "split", "role")  # all other columns are metadata
ROLES = {"query": "test", "gallery": "gallery"}  # of test images -> split


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
            f"{tables[0]}: has the columns {', '.join(columns)}; must have path, label[, split, "
            "role], once"
        )
    names = located(files, base, [row["path"] or "" for row in rows])
    entries = []
    for number, (row, name) in enumerate(zip(rows, names, strict=True), start=2):
        said, role = row.get("split") or "", row.get("role") or ""
        split = "" if options.splits == "none" else options.split_of(said)
        known = (split or not said or options.splits == "none") and (
            not role or (split == "test" and role in ROLES)
        )
        if not row["path"] or not (row["label"] or "").strip() or None in row or not known:
            raise DataError(
                f"{tables[0]}, line {number}: needs a path, a label, no further columns, and the "
                "split train, val or test, the latter with the role query or gallery, if any"
                + (
                    f"; --splits=train:valid:test names other splits than {said!r}"
                    if said and not split
                    else ""
                )
            )
        metadata = {name: row[name] for name in columns if name not in USED}
        entries.append(
            Entry(name, file_at(files, name), row["label"], ROLES.get(role, split), metadata)
        )
    return entries


def recognised(files: Files) -> bool:
    return any(path.lower().endswith(".csv") for path in files)


RECIPE = Recipe(find, in_place=True, recognised=recognised)
