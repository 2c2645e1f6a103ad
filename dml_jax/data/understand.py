"""What the table of a source means: which columns and folders are classes, splits and roles.

Training, `prepare`, `evaluate`, `enroll`, `catalogue` and `inspect` read images by `understand`.
What is doubtful is a sentence; what certainly misleads, or can be read in several ways, is an error
that names the option to decide.

Of nested folders, the structure tells first whether the folders of a level hold mostly the same
names. If they do, only one of the two levels is the class, whatever the language. Which one is
told by a doubled folder (`training_set/training_set`) and by words: for splits (`train`), parts
(`fold_1`) and sessions (`day1`). Otherwise the user decides.
"""

import calendar
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import NamedTuple

from dml_jax.class_names import likeness, near_equal, normalised
from dml_jax.data import sessions
from dml_jax.data.files import SPLITS, Entry, Files, is_image, is_missing
from dml_jax.data.sources import Options, Recipe, Survey, Table, survey
from dml_jax.errors import DataError, counted

FEW = 20  # values in a column of splits
SHOWN = 10  # lines of doubts that a command prints
DIVIDE = "divide the classes with dml-jax prepare --splits=classes"
NAME_SPLITS = "--splits=train:valid:test names those for training, validation and test"
NO_SPLITS = "--splits=classes divides the classes instead, --splits=none takes them for classes"
SPLIT_NAMES = {  # words in the names of folders and columns and in columns -> split
    **dict.fromkeys(("train", "training", "trn", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "validate"), "validation"),
    **dict.fromkeys(("dev", "devel", "development"), "validation"),
    **dict.fromkeys(("test", "testing", "tst", "eval", "evaluation", "holdout"), "test"),
    **dict.fromkeys(("query", "queries", "probe"), "test"),
    **dict.fromkeys(("gallery", "index", "support", "reference", "database"), "gallery"),
}
# Words that may accompany them.
NEUTRAL = {"set", "split", "data", "dataset", "images", "image", "img", "imgs", "is", "in"}
# Words before the number of a part of a data set, or of a session.
PARTS = {"fold", "split", "part", "batch", "set", "cv", "chunk", "subset", "shard", "run", "round"}
SESSIONS = {"day", "date", "session", "visit", "week", "month", "year", "night", "trip", "take"}
SESSIONS |= {name.lower() for name in (*calendar.day_name, *calendar.month_name[1:])}
DATE = re.compile(r"(19|20)\d\d(\D?(0?\d|1[0-2])(\D?\d\d?)?)?")
COLUMNS = {  # what a column holds -> its usual names, the best first
    "path": "path imagepath filepath filename file image imagename imagefile imgpath img",
    "class": "label class classname labelname category species classlabel labels target classid",
    "split": "split subset partition set phase usage datasplit splits",
    "role": "role",
}
ROLES = {"query": "test", "gallery": "gallery"}  # role of a test image -> split
# The part of nested folders that is the class.
READINGS = {"leaf": slice(-1, None), "top": slice(1), "path": slice(None)}
TRUE, FALSE = {"1", "true", "yes", "t", "y"}, {"0", "false", "no", "f", "n", ""}

Folders = tuple[str, ...]  # the names of the folders that an image is in, or some of them


class Understood(NamedTuple):
    """How a source is understood."""

    entries: Sequence[Entry]
    doubts: Sequence[str]  # sentences
    survey: Survey
    near: Sequence[Sequence[str]]  # groups of near-equal names of classes
    undecided: int  # images without a given split, for which `Options.test_share` decides
    stated: Sequence[str]  # the doubts of the reader
    columns: str  # what the columns of a table are, "" without one

    def classes(self) -> dict[str, list[str]]:
        """The sorted names of the classes of each split that has images."""
        names = {
            split: {e.class_name for e in self.entries if e.split == split} for split in SPLITS
        }
        return {split: sorted(found) for split, found in names.items() if found}

    def missing(self) -> list[str]:
        """The images that a table lists and the source lacks."""
        return [entry.id for entry in self.entries if is_missing(entry.file)]


def understand(
    recipe: Recipe, files: Files, options: Options, source: str, *, labelled: bool = False
) -> Understood:
    """Reads files by a recipe; `source` stands for them in messages. See `understood`."""
    found = survey(files.items())
    try:
        table = recipe.read(found.files)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    return understood(table, found, options, source, reads=recipe.reads, labelled=labelled)


def understood(
    table: Table,
    found: Survey,
    options: Options,
    source: str,
    *,
    reads: Sequence[str],
    labelled: bool = False,
) -> Understood:
    """What a table means; `reads` are the suffixes of files other than images that it is made of.

    With `labelled`, the images are to be compared with each other, whatever their split, so no
    class is held out. Raises DataError if the table can be read in several ways, none of the images
    exists, or test classes are also classes of training or validation, or near-equal to one.
    """
    columns, rows, doubts = "", list(table.rows), list(table.doubts)
    try:
        if rows and rows[0].metadata:
            columns, rows, more = _of_columns(rows, options)
            doubts += more
        if not all(row.class_name for row in rows):
            rows, more = _of_folders(rows, options)
            doubts += more
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    names = {name: normalised(name) for name in {row.class_name for row in rows}}
    divided = options.splits in ("classes", "none")
    rows = [
        row._replace(class_name=names[row.class_name], split="" if divided else row.split)
        for row in rows
    ]
    undecided = [row.class_name for row in rows if not row.split]
    tested = test_classes(set(undecided), options.test_share)
    drawn = {name: "test" if name in tested else "train" for name in undecided}
    entries = [row if row.split else row._replace(split=drawn[row.class_name]) for row in rows]
    near = near_equal(names.values())
    result = Understood(entries, (), found, near, len(undecided), table.doubts, columns)
    missing = result.missing()
    if entries and len(missing) == len(entries):
        images = [p for p, file in found.files.items() if is_image(p) and not is_missing(file)]
        there = f"{counted(len(images), 'image')}, e.g. {images[0]}" if images else ""
        raise DataError(
            f"{source}: all {len(missing):,} listed images are missing, e.g. {missing[0]!r}; the "
            f"source holds {there or 'no images; give their folder as well'}"
        )
    if not labelled:
        check_splits(result, source, decided=bool(options.named()))
    return result._replace(doubts=[*doubts, *_doubts(result, names, options, reads)])


def test_classes(classes: Collection[str], share: float) -> set[str]:
    """The classes with the smallest SHA-256 of their names, so that a new class moves few others.

    Near-equal names, which may be one class, stay together.
    """
    together: dict[str, list[str]] = {}
    for name in sorted(classes):
        together.setdefault(likeness(name), []).append(name)

    def digest(group: list[str]) -> bytes:
        return hashlib.sha256(group[0].encode(errors="surrogateescape")).digest()

    chosen: set[str] = set()
    for group in sorted(together.values(), key=digest):
        if len(chosen) < round(share * len(classes)):
            chosen |= set(group)
    return chosen


def shown(doubts: Sequence[str], source: str = "") -> list[str]:
    """The lines that a command prints about its source, at most `SHOWN`."""
    more = f"{len(doubts) - SHOWN + 1} further doubts: dml-jax inspect lists them"
    few = list(doubts) if len(doubts) <= SHOWN else [*doubts[: SHOWN - 1], more]
    return [f"{source}: {line}" if source else line for line in few]


def _words(name: str) -> set[str]:
    """The words of a name such as "TrainSet", "test-set" or "val_images", in lower case."""
    return {word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)}


def splits_of(names: Iterable[str], options: Options) -> dict[str, str]:
    """The split that each name gives, by its words without those that all names share; or ""."""
    words = {name: _words(name) if name.isascii() else set() for name in names}
    common = set.intersection(*words.values()) if len(words) > 1 else set()
    named = options.named()

    def split(name: str) -> str:
        if named or options.splits == "none":
            return named.get(name, "")
        given = words[name] - NEUTRAL - common
        found = {SPLIT_NAMES.get(w) or SPLIT_NAMES.get(w.removesuffix("set"), "") for w in given}
        if found == {"train", "validation"}:
            return "train"
        return found.pop() if len(found) == 1 else ""

    return {name: split(name) for name in words}


def column_of(kind: str, names: Sequence[str]) -> str:
    """The column of a table that holds a path, class, split or role, by its name; "" for none."""
    plain = {"".join(re.findall(r"[^\W_]+", name)).lower(): name for name in reversed(names)}
    return next((plain[usual] for usual in COLUMNS[kind].split() if usual in plain), "")


def _of_columns(rows: Sequence[Entry], options: Options) -> tuple[str, list[Entry], list[str]]:
    """What the columns of a table are, its rows with class and split, and doubts."""
    names = list(rows[0].metadata)
    texts = {name: [str(row.metadata[name] or "").strip() for row in rows] for name in names}
    kinds = {column_of(kind, names): kind for kind in ("path", "class", "role")}
    label, role = column_of("class", names), column_of("role", names)
    others = [name for name in names if name not in kinds]
    few = {name: set(texts[name]) - {""} for name in others if len(set(texts[name])) <= FEW}
    splits = {name: splits_of(few.get(name, ()), options) for name in others}
    fitting = [name for name in others if splits[name] and all(splits[name].values())]
    usual = column_of("split", others)
    chosen = usual if usual in fitting or usual.lower() == "split" else next(iter(fitting), "")
    if options.splits == "none":
        chosen = ""
    elif unknown := {
        text for text in texts.get(chosen, ()) if text and not splits[chosen].get(text)
    }:
        what = f"the column {chosen!r} holds {min(unknown)!r}, which is no split"
        raise DataError(f"{what}; {NAME_SPLITS}")
    doubts = [
        f"the column {name!r} looks like splits, and {'is used' if name == chosen else 'is not'}"
        for name in fitting
        if name != chosen or name != usual
    ]
    flags = {
        name: flag
        for name in others
        if options.splits != "none" and set(map(str.lower, texts[name])) <= TRUE | FALSE
        if (flag := _flag(name))
    }
    held = set(flags.values()) - ROLES.keys()
    retrieval = bool(role and any(texts[role])) or not ROLES.keys().isdisjoint(flags.values())

    def split(i: int) -> str:
        given = splits[chosen].get(texts[chosen][i], "") if chosen else ""
        true = {flag for name, flag in flags.items() if texts[name][i].lower() in TRUE}
        roles = (true & ROLES.keys()) | ({texts[role][i].lower()} - {""} if role else set())
        if not given and held:
            given = next(iter(true & held), "test" if "train" in held else "train")
        if not roles:
            return given or ("train" if retrieval else "")
        if given == "train" or not roles <= ROLES.keys():
            what = f"the role {', '.join(sorted(roles))!r} and the split {given!r}"
            rule = "a role is query or gallery, of test images"
            raise DataError(f"{rows[i].id!r} has {what}; {rule}")
        return ROLES[min(roles)] if len(roles) == 1 else given or "test"

    used = kinds | ({chosen: "split"} if chosen else {})
    told = [f"{name!r} gives the {kind}" for name, kind in used.items() if name]
    told += [f"{name!r} tells {flag} images" for name, flag in flags.items()]
    rest = [name for name in others if name not in used | flags]
    told += [f"metadata: {', '.join(map(repr, rest))}"] if rest else []
    found = [
        row._replace(
            class_name=str(row.metadata[label]),
            split=split(i),
            metadata={name: row.metadata[name] for name in rest},
        )
        for i, row in enumerate(rows)
    ]
    return ", ".join(told), found, doubts


def _flag(column: str) -> str:
    """The split or role that a column such as "is_query" or "is_training_img" is about, or ""."""
    words = _words(column) - NEUTRAL
    word = words.pop() if len(words) == 1 else ""
    return word if word in ROLES else SPLIT_NAMES.get(word, "")


def _of_folders(rows: Sequence[Entry], options: Options) -> tuple[list[Entry], list[str]]:
    """The rows with class and split from the folders in their names, and doubts about that.

    A class is the path of its folder, without folders that all classes are in and those that give
    the split or a part. Folders inside a folder that holds images belong to its class.
    """
    given = [tuple(row.id.split("/")[:-1]) for row in rows]
    twice = {a for parts in given for a, b in pairwise(parts) if likeness(a) == likeness(b)}
    places = [_undoubled(parts) for parts in given]
    images, doubts = Counter(places), list[str]()
    top = _top(images)
    if any(splits_of(top, options).values()):
        name = next(name for name, split in splits_of(top, options).items() if split)
        doubts.append(f"all images are in the folder {name!r}, so it gives no split")
    bare = {parts: parts[len(top) :] for parts in images}
    level, split_of = _split_level(set(bare.values()), options)
    splits = {
        parts: split_of.get(inner[level], "") if level is not None and len(inner) > level else ""
        for parts, inner in bare.items()
    }
    inner = bare
    if level is not None:
        inner = {parts: rest[:level] + rest[level + 1 :] for parts, rest in bare.items()}
    elif options.named():
        raise DataError(f"--splits={options.splits}: there are no folders of these names")
    elif options.splits == "classes":
        inner = {parts: _without_splits(rest, options) for parts, rest in bare.items()}
    elif options.splits == "auto":
        doubts += _check_mixed(set(bare.values()), options)
    outside = {parts for parts in images if level is not None and not splits[parts]}
    loose = {parts for parts in images if not inner[parts]} - outside
    classes, more = _classes({inner[p] for p in images if p not in loose | outside}, twice, options)
    kept = [
        row._replace(class_name="/".join(classes[inner[parts]]), split=row.split or splits[parts])
        for row, parts in zip(rows, places, strict=True)
        if parts not in loose | outside
    ]
    for left, where in ((loose, "no class folder"), (outside, "none of the folders of splits")):
        if left:
            stray = [row.id for row, parts in zip(rows, places, strict=True) if parts in left]
            verb = "is" if len(stray) == 1 else "are"
            what = f"{counted(len(stray), 'image')}, e.g. {stray[0]!r}, {verb} in {where}"
            if len(stray) > len(kept):
                folder = stray[0].rpartition("/")[0].rpartition("/")[2]
                remedy = f", or give --splits=none if {folder!r} is a class" if folder else ""
                raise DataError(f"{what}: put the images of each class into a folder{remedy}")
            doubts.append(f"{what}, and left out")
    return kept, [*doubts, *more]


def _top(images: Mapping[Folders, int]) -> Folders:
    """The folders that all classes are in; those of loose images, if they hold several others with
    more images each."""
    ends = zip(min(images), max(images), strict=False)
    top: Folders = tuple(a for a, b in takewhile(lambda pair: pair[0] == pair[1], ends))
    below = Counter[str]()
    for parts, count in images.items():
        if len(parts) > len(top):
            below[parts[len(top)]] += count
    is_class = images.get(top, 0) and (len(below) < 2 or images[top] > min(below.values()))
    return top[:-1] if is_class else top


def _undoubled(parts: Folders) -> Folders:
    """Folders without those that are named like the folder around them."""
    return tuple(p for i, p in enumerate(parts) if not i or likeness(p) != likeness(parts[i - 1]))


def _split_level(
    folders: Collection[Folders], options: Options
) -> tuple[int | None, dict[str, str]]:
    """The level of the folders that give the split of every image, if there is one, and the split
    of each of these folders."""
    named = bool(options.named())
    for level in range(max(map(len, folders))):
        # A folder without class folders, such as of unlabelled images, need not be named so.
        holding = {parts for parts in folders if len(parts) > level + 1} or folders
        names = splits_of({parts[level] for parts in holding if len(parts) > level}, options)
        everywhere = all(len(parts) > level for parts in folders if parts)
        given = any(names.values()) if named else all(names.values()) and everywhere
        if given and (len(names) > 1 or named):
            return level, names
    return None, {}


def _without_splits(parts: Folders, options: Options) -> Folders:
    return tuple(part for part in parts if not splits_of([part], options)[part]) or parts


def _check_mixed(folders: Collection[Folders], options: Options) -> list[str]:
    """Refuses folders for training and test beside folders that give no split; doubts about
    others."""
    for level in range(max(map(len, folders))):
        held = {parts[level] for parts in folders if len(parts) > max(level, 1)}
        looks = [name for name in sorted(held) if splits_of([name], options)[name]]
        if {"train", "test"} <= {splits_of([name], options)[name] for name in looks}:
            raise DataError(
                f"the folders {looks[0]!r} and {looks[-1]!r} look like splits, but others beside "
                f"them do not; {NAME_SPLITS}, {NO_SPLITS}"
            )
    names = {part for parts in folders for part in parts if splits_of([part], options)[part]}
    listed = ", ".join(map(repr, sorted(names)[:4]))
    return [f"the folders {listed} count as classes, not as splits"] if names else []


def _classes(
    folders: Collection[Folders], twice: Collection[str], options: Options
) -> tuple[dict[Folders, Folders], list[str]]:
    """The class of each folder of images, and doubts; `twice` are names of doubled folders."""
    doubts = list[str]()
    outer = {
        parts: next((parts[:i] for i in range(1, len(parts)) if parts[:i] in folders), parts)
        for parts in folders
    }
    inside = sorted(parts for parts in folders if outer[parts] != parts)
    if options.session == sessions.FOLDER:  # the class is the folder that holds folders of images
        around = {outer[parts] for parts in inside}
        outer = {p: outer[p] if p in inside or p in around else p[:-1] or p for p in folders}
    elif inside:
        verb = "counts" if len(inside) == 1 else "count"
        doubts.append(
            f"{counted(len(inside), 'folder')} inside class folders, e.g. {'/'.join(inside[0])!r}, "
            f"{verb} as part of that class, here {'/'.join(outer[inside[0]])!r}"
        )
    chosen = "path" if options.splits == "none" and options.classes == "auto" else options.classes
    named, more = _shortened(set(outer.values()), twice)
    if chosen == "auto":
        _check_crossing(set(named.values()))
        doubts += more
    else:
        named = {label: label[READINGS[chosen]] for label in named}
    if deep := sorted(label for label in set(named.values()) if len(label) > 1):
        above = counted(len({label[:-1] for label in deep}), "folder")
        verb = "is a folder" if len(deep) == 1 else "are folders"
        doubts.append(
            f"{counted(len(deep), 'class')}, e.g. {'/'.join(deep[0])!r}, {verb} in {above}; if "
            "such folders are parts of one class, give --classes=top, or --session=folder for days"
        )
    return {parts: named[outer[parts]] for parts in folders}, doubts


def _shortened(
    labels: Collection[Folders], twice: Collection[str]
) -> tuple[dict[Folders, Folders], list[str]]:
    """The labels without levels at which all have the same name, last folders that are days or
    other sessions, and parts that hold the same classes, such as folds; and doubts."""
    short, doubts, level = {label: label for label in labels}, list[str](), 0

    def drop(level: int) -> None:
        short.update({label: s[:level] + s[level + 1 :] or s for label, s in short.items()})

    while level < (depth := min(map(len, short.values()), default=0)):
        if depth > 1 and len({s[level] for s in short.values()}) == 1:
            drop(level)
        else:
            level += 1
    deep = sorted(s for s in short.values() if len(s) > 1)
    if deep and all(_is_numbered(s[-1], SESSIONS) for s in deep):
        short = {label: s[: max(1, len(s) - 1)] for label, s in short.items()}
        doubts.append(
            f"folders such as {'/'.join(deep[0])!r} count as part of the class {deep[0][-2]!r}; "
            "session=folder takes them for sessions"
        )
    for level in _crossing(set(short.values()))[:1]:
        names = sorted({s[level] for s in short.values() if len(s) > level})
        numbered = all(_is_numbered(name, PARTS) or _is_numbered(name, SESSIONS) for name in names)
        if numbered or set(names) <= set(twice):
            drop(level)
            listed = ", ".join(map(repr, names[:3]))
            doubts.append(f"the folders {listed} hold the same classes and are taken together")
    return short, doubts


def _is_numbered(name: str, words: Collection[str]) -> bool:
    """Whether a name is one of some words, perhaps with a number, or a date if these are those of
    sessions."""
    if words is SESSIONS and DATE.fullmatch(name):
        return True
    letters = _words(name)
    stem = "".join(letter for letter in letters if len(letter) > 1)
    known = stem in words or stem.removesuffix("s") in words
    numbered = any(map(str.isdigit, name)) or any(len(letter) == 1 for letter in letters)
    return known and (words is SESSIONS or numbered)


def _crossing(labels: Collection[Folders]) -> list[int]:
    """The levels whose folders hold mostly the same names, without the last one."""
    found = []
    for level in range(max(map(len, labels), default=0) - 1):
        inside: dict[Folders, set[str]] = {}
        for label in labels:
            if len(label) > level + 1:
                rest = tuple(map(likeness, label[:level] + label[level + 1 :]))
                inside.setdefault(rest, set()).add(label[level])
        shared = sum(len(names) > 1 for names in inside.values())
        if shared and 2 * shared >= len(inside):
            found.append(level)
    return found


def _check_crossing(labels: Collection[Folders]) -> None:
    """Raises DataError if folders hold mostly the same names, so that one level is the class."""
    if not (levels := _crossing(labels)):
        return
    level = levels[0]
    readings = []
    for name, part in READINGS.items():
        classes = sorted({label[part] for label in labels})
        number = counted(len(classes), "class")
        readings.append(f"--classes={name}: {number}, e.g. {'/'.join(classes[0])!r}")
    names = sorted({label[level] for label in labels if len(label) > level})
    listed = ", ".join(map(repr, names[:3])) + (", …" if names[3:] else "")
    raise DataError(
        f"the folders {listed} hold mostly the same names, which can be read as "
        f"{'; '.join(readings)}; choose one (in training, data.classes), or name the folders that "
        "are splits, e.g. --splits=train:test (data.splits)"
    )


def check_splits(page: Understood, source: str, *, decided: bool) -> None:
    """Raises DataError if classes of test are in other splits or, unless `decided`, alike."""
    classes = page.classes()
    test = {*classes.get("test", ()), *classes.get("gallery", ())}
    for name, split in (("training", "train"), ("validation", "validation")):
        seen = set(classes.get(split, ()))
        if shared := sorted(seen & test):
            raise DataError(
                f"{source}: {len(shared)} classes are in both {name} and test ({_listed(shared)}): "
                f"test classes must be new to the model; {DIVIDE}, or train with "
                "data.splits=classes"
            )
        alike = [group for group in page.near if seen & set(group) and test & set(group)]
        if alike and not decided:
            first, second = min(seen & set(alike[0])), min(test & set(alike[0]))
            more = f" ({len(alike) - 1} more such pairs)" if alike[1:] else ""
            raise DataError(
                f"{source}: the classes {first!r} in {name} and {second!r} in test look like the "
                f"same one{more}; rename one, {DIVIDE} or, if they differ, name the splits, e.g. "
                "--splits=train:valid:test"
            )


def _doubts(
    page: Understood, names: Mapping[str, str], options: Options, reads: Sequence[str]
) -> list[str]:
    found, spellings = list[str](), dict[str, list[str]]()
    for given, name in sorted(names.items()):
        spellings.setdefault(name, []).append(given)
    if merged := [given for given in spellings.values() if len(given) > 1]:
        verb = "is" if len(merged) == 1 else "are"
        several = f"{counted(len(merged), 'class')} {verb} written in several ways"
        found.append(f"{several}, e.g. {' and '.join(map(ascii, min(merged)))}")
    if page.near:
        pairs = [" and ".join(map(ascii_if_alike(group), group)) for group in page.near[:3]]
        listed = _listed(pairs, len(page.near))
        found.append(f"near-equal names of classes: {listed}; rename those that are the same")
    if 0 < page.undecided < len(page.entries):
        share = f"{100 * options.test_share:g} % of their classes are for test"
        number = counted(page.undecided, "image")
        found.append(f"{number} of {len(page.entries):,} have no split; {share}")
    if missing := page.missing():
        share = f"{100 * len(missing) / len(page.entries):.3g} % of the listed images"
        found.append(f"{share} ({len(missing):,}) are missing, e.g. {missing[0]!r}")
    if reads:  # a table lists the images
        used = {entry.file for entry in page.entries}
        images = [path for path in page.survey.files if is_image(path)]
        if unused := [path for path in images if page.survey.files[path] not in used]:
            number = counted(len(unused), "image")
            found.append(f"{number}, e.g. {unused[0]!r}, not listed and not used")
    return [*found, *page.survey.doubts(reads)]


def ascii_if_alike(group: Sequence[str]) -> Callable[[object], str]:
    """How to show names: invisible differences as escapes."""
    return ascii if len({re.sub(r"\W", "", name) for name in group}) == 1 else repr


def _listed(names: Sequence[str], count: int = 0) -> str:
    more = (count or len(names)) - len(names[:5])
    return ", ".join(names[:5]) + (f" and {more} more" if more else "")
