"""Images listed in a table: a path, a label and, optionally, split and role.

    path,label,split,role,shop
    images/1.jpg,oak,train,,north
    images/7.jpg,elm,test,query,north
    images/8.jpg,elm,test,gallery,south

Paths are relative to the folder of the table, see `files.located`. Without a split column, the
classes are split into training and test. Other usual names of columns are understood as well; those
that are not used, such as shop, are exported as metadata.
"""

import csv
import io

from dml_jax.data.files import Entry, Files, file_at, located
from dml_jax.data.sources import Recipe, Table
from dml_jax.data.understand import column_of
from dml_jax.errors import DataError
from dml_jax.files import reading, text_of


def read(files: Files) -> Table:
    """Reads the only .csv file among the files, with commas, semicolons or tabs."""
    tables = [path for path in files if path.lower().endswith(".csv")]
    if len(tables) != 1:
        found = f"{len(tables)} .csv files ({', '.join(tables[:3])})" if tables else "no .csv file"
        raise DataError(f"found {found}, exactly one is needed; give it as --source")
    table = tables[0]
    with reading(table, "write it as a table in UTF-8"):
        text = text_of(files[table].read())
        header = text.partition("\n")[0]
        delimiter = next((mark for mark in ",;\t" if mark in header), ",")
        lines = io.StringIO(text, newline="")
        reader = csv.DictReader(lines, strict=True, delimiter=delimiter)
        rows = list(reader)
    columns = reader.fieldnames or ()
    path, label = column_of("path", columns), column_of("class", columns)
    unclear = "" in columns or len(set(columns)) < len(columns)
    if not path or not label or unclear:
        has = f"has the columns {', '.join(columns)}"
        raise DataError(f"{table}: {has}; must have path, label[, split, role], once")
    if not rows:
        raise DataError(f"{table}: has no rows below the names of its columns")
    names = located(files, table.rpartition("/")[0], [row[path] or "" for row in rows])
    for number, row in enumerate(rows, start=2):
        if None in row:
            raise DataError(f"{table}, line {number}: has more cells than columns")
        if empty := [name for name in (path, label) if not (row[name] or "").strip()]:
            raise DataError(f"{table}, line {number}: has no {empty[0]}")
    entries = [
        Entry(name, file_at(files, name), "", "", row)
        for row, name in zip(rows, names, strict=True)
    ]
    return Table(entries)


def recognised(files: Files) -> bool:
    return any(path.lower().endswith(".csv") for path in files)


RECIPE = Recipe(read, in_place=True, recognised=recognised)
