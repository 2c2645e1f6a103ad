"""What the columns of a table mean: path, class, split, role or metadata."""

import re
from collections.abc import Mapping, Sequence

from dml_jax.data.files import Entry
from dml_jax.data.sources import Options, words_of
from dml_jax.errors import DataError

FEW = 20  # values in a column of splits
NAME_SPLITS = "--splits=train:valid:test names those for training, validation and test"
NAMES = {  # what a column holds -> its usual names, the best first
    "path": "path imagepath filepath filename file image imagename imagefile imgpath img",
    "class": "label class classname labelname category species classlabel labels target classid",
    "split": "split subset partition set phase usage datasplit splits",
    "role": "role",
}
ROLES = {"query": "test", "gallery": "gallery"}  # role of a test image -> split
TRUE, FALSE = {"1", "true", "yes", "t", "y"}, {"0", "false", "no", "f", "n", ""}


def column_of(kind: str, columns: Sequence[str]) -> str:
    """The column that holds a path, class, split or role, by its name; "" if there is none."""
    plain = {"".join(re.findall(r"[^\W_]+", name)).lower(): name for name in reversed(columns)}
    return next((plain[usual] for usual in NAMES[kind].split() if usual in plain), "")


def read_columns(
    rows: Sequence[Entry], options: Options, doubts: list[str]
) -> tuple[str, list[Entry]]:
    """What the columns are, in words, and the rows with class, split and metadata; adds `doubts`.

    Raises DataError if a column of splits or roles holds something else.
    """
    columns = list(rows[0].metadata)
    cells = {name: [str(row.metadata[name] or "").strip() for row in rows] for name in columns}
    path, label, role = (column_of(kind, columns) for kind in ("path", "class", "role"))
    free = [name for name in columns if name not in (path, label, role)]
    splits = _split_column(free, cells, options, doubts)
    flags = {name: flag for name in free if (flag := _flag(name, cells[name], options))}
    split_flags, role_flags = {*flags.values()} - ROLES.keys(), {*flags.values()} & ROLES.keys()
    rest = "train" if role_flags or (role and any(cells[role])) else ""  # split without a role
    if len(flags) == 1 and role_flags and not (splits or role):
        # A single column, such as is_query, may be about test images only.
        (flag,), (texts,) = role_flags, (cells[name] for name in flags)
        asked = {c for c, text in zip(cells[label], texts, strict=True) if text.lower() in TRUE}
        others = {c for c, text in zip(cells[label], texts, strict=True) if text.lower() in FALSE}
        if 2 * len(asked & others) > min(len(asked), len(others)):
            rest = ROLES[min(ROLES.keys() - {flag})]

    def split_of(i: int) -> str:
        split = options.split_of(cells[splits][i]) if splits else ""
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
    return ", ".join(uses), [
        row._replace(
            class_name=str(row.metadata[label]),
            split=split_of(i) or row.split,
            metadata={name: row.metadata[name] for name in metadata},
        )
        for i, row in enumerate(rows)
    ]


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
    readable = [n for n in names if values[n] and all(map(options.split_of, values[n]))]
    usual = column_of("split", names)
    if usual and usual not in readable and 0 < len(values[usual]) <= FEW:
        odd = min(value for value in values[usual] if not options.split_of(value))
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
    words = words_of(column)
    if options.splits == "none" or len(words) != 1 or not {*map(str.lower, texts)} <= TRUE | FALSE:
        return ""
    (word,) = words
    split = Options().split_of(word)
    return word if word in ROLES else "" if split == "gallery" else split
