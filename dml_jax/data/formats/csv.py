"""Images listed in a table: a path, a label and, optionally, split and role.

    path,label,split,role,shop
    images/1.jpg,oak,train,,north
    images/7.jpg,elm,test,query,north
    images/8.jpg,elm,test,gallery,south

Paths are relative to the folder of the table, see `files.located`. Without a split column, the
classes are split into training and test. Other usual names of columns are understood as well; those
that are not used, such as shop, are exported as metadata; columns without a name are not. Tables
that are named like splits, such as train.csv and test.csv, are one if they have the same columns.
"""

import csv
import io

from dml_jax.data.columns import column_of
from dml_jax.data.files import Entry, Files, file_at, located
from dml_jax.data.sources import AUTO, Recipe, Table
from dml_jax.errors import DataError
from dml_jax.files import reading, text_of


def read(files: Files) -> Table:
    """Reads the only .csv file, or those of the splits, with commas, semicolons or tabs."""
    tables = [path for path in files if path.lower().endswith(".csv")]
    splits = AUTO.splits_of([path.rpartition("/")[2][:-4] for path in tables])
    several = len(tables) > 1 and len(splits) == len(tables)
    if len(tables) != 1 and not several:
        found = f"{len(tables)} .csv files ({', '.join(tables[:3])})" if tables else "no .csv file"
        raise DataError(f"found {found}, exactly one is needed; give it as --source")
    parts = [_rows(files, table) for table in tables]
    columns = [set(rows[0].metadata) for rows in parts]
    if different := [
        table for table, has in zip(tables, columns, strict=True) if has != columns[0]
    ]:
        has = f"{different[0]} has other columns than {tables[0]}"
        raise DataError(f"{has}; give one of them as --source")
    if not several:
        return Table(parts[0])
    split = zip(splits.values(), parts, strict=True)
    rows = [row._replace(split=name) for name, found in split for row in found]
    return Table(rows, [f"{' and '.join(tables)} are one table, whose names give the split"])


def _rows(files: Files, table: str) -> list[Entry]:
    with reading(table, "write it as a table in UTF-8"):
        text = text_of(files[table].read())
        header = text.partition("\n")[0]
        delimiter = next((mark for mark in ",;\t" if mark in header), ",")
        lines = io.StringIO(text, newline="")
        reader = csv.DictReader(lines, strict=True, delimiter=delimiter)
        rows = list(reader)
    columns = [name for name in reader.fieldnames or () if name]
    path, label = column_of("path", columns), column_of("class", columns)
    if not path or not label or len(set(columns)) < len(columns):
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
    kept = [{name: row[name] for name in columns} for row in rows]
    return [
        Entry(name, file_at(files, name), "", "", row)
        for name, row in zip(names, kept, strict=True)
    ]


def recognised(files: Files) -> bool:
    return any(path.lower().endswith(".csv") for path in files)


RECIPE = Recipe(read, in_place=True, recognised=recognised)
