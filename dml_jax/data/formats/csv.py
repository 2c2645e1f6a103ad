"""Images listed in a table: a path, a label and, optionally, split and role.

    path,label,split,role,shop
    images/1.jpg,oak,train,,north
    images/7.jpg,elm,test,query,north
    images/8.jpg,elm,test,gallery,south

Paths are relative to the folder of the table, see `files.resolve_paths`. Without a split column,
the classes are split into training and test. Other usual names of columns work, too. Other columns,
such as shop, are exported as metadata, unless they have no name. Tables with the names of splits,
such as train.csv and test.csv, are one if they have the same columns.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence

from dml_jax.data.files import Entry, Files, file_at, resolve_paths
from dml_jax.data.sources import AUTO, NAME_SPLITS, Options, Recipe, Table, find_words
from dml_jax.errors import DataError
from dml_jax.files import reading, text_of

FEW = 20  # values in a column of splits
NAMES = {  # what a column holds -> its usual names, the best first
    "path": "path imagepath filepath filename file image imagename imagefile imgpath img",
    "class": "label class classname labelname category species classlabel labels target classid",
    "split": "split subset partition set phase usage datasplit splits",
    "role": "role",
}
ROLES = {"query": "test", "gallery": "gallery"}  # role of a test image -> split
TRUE, FALSE = {"1", "true", "yes", "t", "y"}, {"0", "false", "no", "f", "n", ""}


def read(files: Files, options: Options) -> Table:
    """Reads the only .csv file, or those of the splits, with commas, semicolons or tabs."""
    tables = [path for path in files if path.lower().endswith(".csv")]
    splits = AUTO.find_splits([path.rpartition("/")[2][:-4] for path in tables])
    if (len(tables) != 1 and len(splits) != len(tables)) or not tables:
        names = f"{len(tables)} .csv files ({', '.join(tables[:3])})" if tables else "no .csv file"
        raise DataError(f"found {names}, exactly one is needed; give it as --source")
    rows, doubts = list[Entry](), list[str]()
    for table, split in zip(tables, splits.values() or [""], strict=True):
        part = _rows(files, table, split)
        if rows and {*part[0].metadata} != {*rows[0].metadata}:
            what = f"{table} has other columns than {tables[0]}"
            raise DataError(f"{what}; give one of them as --source")
        rows += part
    if splits:
        doubts.append(f"{' and '.join(tables)} are one table, whose names give the split")
    return read_columns(rows, options, doubts)


def _rows(files: Files, table: str, split: str) -> list[Entry]:
    """The rows of a table, with the cells of all columns as metadata."""
    with reading(table, "write it as a table in UTF-8"):
        text = text_of(files[table].read())
        header = text.partition("\n")[0]
        delimiter = next((mark for mark in ",;\t" if mark in header), ",")
        lines = io.StringIO(text, newline="")
        reader = csv.DictReader(lines, strict=True, delimiter=delimiter)
        rows = list(reader)
    columns = [name for name in reader.fieldnames or () if name]
    path, label = find_column("path", columns), find_column("class", columns)
    if not path or not label or len(set(columns)) < len(columns):
        has = f"has the columns {', '.join(columns)}"
        raise DataError(f"{table}: {has}; must have path, label[, split, role], once")
    if not rows:
        raise DataError(f"{table}: has no rows below the names of its columns")
    names = resolve_paths(files, table.rpartition("/")[0], [row[path] or "" for row in rows])
    for number, row in enumerate(rows, start=2):
        if None in row:
            raise DataError(f"{table}, line {number}: has more cells than columns")
        if empty := [name for name in (path, label) if not (row[name] or "").strip()]:
            raise DataError(f"{table}, line {number}: has no {empty[0]}")
    return [
        Entry(name, file_at(files, name), "", split, {column: row[column] for column in columns})
        for name, row in zip(names, rows, strict=True)
    ]


def find_column(kind: str, columns: Sequence[str]) -> str:
    """The column that holds a path, class, split or role, by its name; "" if there is none."""
    plain = {"".join(re.findall(r"[^\W_]+", name)).lower(): name for name in reversed(columns)}
    return next((plain[usual] for usual in NAMES[kind].split() if usual in plain), "")


def read_columns(rows: Sequence[Entry], options: Options, doubts: list[str]) -> Table:
    """The rows with class, split and metadata from their cells; adds `doubts`.

    Raises DataError if a column of splits or roles holds something else.
    """
    columns = list(rows[0].metadata)
    cells = {name: [str(row.metadata[name] or "").strip() for row in rows] for name in columns}
    path, label, role = (find_column(kind, columns) for kind in ("path", "class", "role"))
    free = [name for name in columns if name not in (path, label, role)]
    splits = _split_column(free, cells, options, doubts)
    flags = {name: flag for name in free if (flag := _flag(name, cells[name], options))}
    split_flags, role_flags = {*flags.values()} - ROLES.keys(), {*flags.values()} & ROLES.keys()
    rest = "train" if role_flags or (role and any(cells[role])) else ""  # split without a role
    if len(flags) == 1 and role_flags and not (splits or role):
        # A single column, such as is_query, may be about test images only.
        (flag,), (texts,) = role_flags, (cells[name] for name in flags)
        cases = [(text.lower() in TRUE, c) for text, c in zip(texts, cells[label], strict=True)]
        one, other = ({name for case, name in cases if case is side} for side in (True, False))
        if 2 * len(one & other) > min(len(one), len(other)):
            rest = ROLES[min(ROLES.keys() - {flag})]

    def decide_split(i: int) -> str:
        split = options.find_split(cells[splits][i]) if splits else ""
        marks = {flag for name, flag in flags.items() if cells[name][i].lower() in TRUE}
        if split_flags and not split:
            split = next(iter(marks - ROLES.keys()), "test" if "train" in split_flags else "train")
        roles = (marks & ROLES.keys()) | ({cells[role][i].lower()} - {""} if role else set())
        if roles and (split == "train" or not roles <= ROLES.keys()):
            raise DataError(
                f"{rows[i].id!r} has the role {', '.join(sorted(roles))!r} and the split "
                f"{split!r}; a role is query or gallery, of test images"
            )
        return ROLES[min(roles)] if len(roles) == 1 else split or ("test" if roles else rest)

    kinds = {path: "path", label: "class", role: "role", splits: "split"}
    uses = [f"{name!r} gives the {kind}" for name, kind in kinds.items() if name]
    uses += [f"{name!r} tells {flag} images" for name, flag in flags.items()]
    metadata = [name for name in free if name not in flags and name != splits]
    uses += [f"metadata: {', '.join(map(repr, metadata))}"] if metadata else []
    images = [
        row._replace(
            class_name=str(row.metadata[label]),
            split=decide_split(i) or row.split,
            metadata={name: row.metadata[name] for name in metadata},
        )
        for i, row in enumerate(rows)
    ]
    return Table(images, doubts, ", ".join(uses))


def _split_column(
    names: Sequence[str],
    cells: Mapping[str, Sequence[str]],
    options: Options,
    doubts: list[str],
) -> str:
    """The column of splits, or "": by its usual name or, with a doubt, by its values alone."""
    if options.splits == "none":
        return ""
    values = {name: {*cells[name]} - {""} for name in names}
    readable = [n for n in names if values[n] and all(map(options.find_split, values[n]))]
    usual = find_column("split", names)
    if usual and usual not in readable and 0 < len(values[usual]) <= FEW:
        odd = min(value for value in values[usual] if not options.find_split(value))
        what = f"the column {usual!r} holds {odd!r}, which is no split"
        raise DataError(f"{what}; {NAME_SPLITS}, --splits=none leaves the column unused")
    column = usual if usual in readable else next(iter(readable), "")
    doubts += [
        f"the column {name!r} looks like splits and is {'' if name == column else 'not '}read so"
        for name in readable
        if name != usual
    ]
    return column


def _flag(column: str, texts: Sequence[str], options: Options) -> str:
    """The split or role that a column such as "is_query" or "is_training_img" is about, or ""."""
    words = find_words(column)
    if options.splits == "none" or len(words) != 1 or not {*map(str.lower, texts)} <= TRUE | FALSE:
        return ""
    (word,) = words
    split = AUTO.find_split(word)
    return word if word in ROLES else "" if split == "gallery" else split


def matches(files: Files) -> bool:
    return any(path.lower().endswith(".csv") for path in files)


RECIPE = Recipe(read, in_place=True, matches=matches)
