"""Custom images listed in a table: columns path, label and, optionally, split and role.

    path,label,split,role,shop
    images/1.jpg,oak,train,,north
    images/7.jpg,elm,test,query,north
    images/8.jpg,elm,test,gallery,south

Paths are relative to the folder of the table, see `files.located`. Without a split column, the
classes are split into training and test. Other columns, such as shop, are exported as metadata.
"""

import csv
import io

from dml_jax.data.files import Entry, Files, file_at, located
from dml_jax.data.prepare.sources import Options, Recipe
from dml_jax.errors import DataError
from dml_jax.files import reading

USED = ("path", "label", "split", "role")  # all other columns are metadata
ROLES = {"query": "test", "gallery": "gallery"}  # role of a test image -> split


def find(files: Files, options: Options) -> list[Entry]:
    """Reads the only .csv file among the files."""
    tables = [path for path in files if path.lower().endswith(".csv")]
    if len(tables) != 1:
        found = f"{len(tables)} .csv files ({', '.join(tables[:3])})" if tables else "no .csv file"
        raise DataError(f"found {found}, exactly one is needed; give it as --source")
    table = tables[0]
    with reading(table, "write it as a table in UTF-8"):
        text = files[table].read().decode("utf-8-sig")
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        rows = list(reader)
    columns = reader.fieldnames or ()
    if not {"path", "label"} <= set(columns) or "" in columns or len(set(columns)) < len(columns):
        has = f"has the columns {', '.join(columns)}"
        raise DataError(f"{table}: {has}; must have path, label[, split, role], once")
    if not rows:
        raise DataError(f"{table}: has no rows below the names of its columns")
    base = table.rpartition("/")[0]
    names = located(files, base, [row["path"] or "" for row in rows])
    entries = []
    for number, (row, name) in enumerate(zip(rows, names, strict=True), start=2):
        given, role = row.get("split") or "", row.get("role") or ""
        split = options.split_of(given)
        unknown = given and not split and options.splits != "none"
        misplaced = role and (split != "test" or role not in ROLES)
        labelled = row["path"] and (row["label"] or "").strip()
        if not labelled or None in row or unknown or misplaced:
            named = f"; --splits=train:valid:test names other splits than {given!r}"
            raise DataError(
                f"{table}, line {number}: needs a path, a label, no further columns, and the "
                "split train, val or test, the latter with the role query or gallery, if any"
                f"{named if given and not split else ''}"
            )
        metadata = {name: row[name] for name in columns if name not in USED}
        split = ROLES.get(role, split)
        entries.append(Entry(name, file_at(files, name), row["label"], split, metadata))
    return entries


def recognised(files: Files) -> bool:
    return any(path.lower().endswith(".csv") for path in files)


RECIPE = Recipe(find, in_place=True, recognised=recognised)
