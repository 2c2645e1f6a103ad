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
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import NamedTuple

from dml_jax.class_names import likeness, near_equal, normalised
from dml_jax.data import sessions
from dml_jax.data.files import SPLITS, Entry, Files, is_image, is_missing
from dml_jax.data.sources import Options, Recipe, Survey, Table, survey
from dml_jax.errors import DataError, counted, listed

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
        return understood(recipe, recipe.read(found.files), found, options, labelled=labelled)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error


def understood(
    recipe: Recipe, table: Table, found: Survey, options: Options, *, labelled: bool = False
) -> Understood:
    """What a table that a recipe has read means.

    With `labelled`, the images are to be compared with each other, whatever their split, so no
    class is held out. Raises DataError if the table can be read in several ways, none of the images
    exists, or test classes are also classes of training or validation, or near-equal to one.
    """
    columns, rows, doubts = "", list(table.rows), list(table.doubts)
    if rows and rows[0].metadata:
        columns, rows = _of_columns(rows, options, doubts)
    if not all(row.class_name for row in rows):
        rows = _of_folders(rows, options, doubts)
    names = {name: normalised(name) for name in {row.class_name for row in rows}}
    divided = options.splits in ("classes", "none")
    rows = [
        row._replace(class_name=names[row.class_name], split="" if divided else row.split)
        for row in rows
    ]
    undecided = [row.class_name for row in rows if not row.split]
    tested = test_classes(set(undecided), options.test_share)
    entries = [
        row._replace(split=row.split or ("test" if row.class_name in tested else "train"))
        for row in rows
    ]
    near = near_equal(names.values())
    result = Understood(entries, (), found, near, len(undecided), table.doubts, columns)
    missing = result.missing()
    if entries and len(missing) == len(entries):
        images = [p for p, file in found.files.items() if is_image(p) and not is_missing(file)]
        there = f"{counted(len(images), 'image')}, e.g. {images[0]}" if images else ""
        raise DataError(
            f"all {len(missing):,} listed images are missing, e.g. {missing[0]!r}; the source "
            f"holds {there or 'no images; give their folder as well'}"
        )
    if not labelled and (problem := mixed_splits(result, options)):
        raise DataError(problem)
    return result._replace(doubts=[*doubts, *_doubts(result, names, options, recipe.reads)])


def test_classes(classes: Collection[str], share: float) -> set[str]:
    """The classes with the smallest SHA-256 of their names, so that a new class moves few others.

    Near-equal names, which may be one class, stay together.
    """
    together: dict[str, list[str]] = {}
    for name in sorted(classes):
        together.setdefault(likeness(name), []).append(name)

    chosen: set[str] = set()
    raw = {key: group[0].encode(errors="surrogateescape") for key, group in together.items()}
    for key in sorted(together, key=lambda key: hashlib.sha256(raw[key]).digest()):
        if len(chosen) < round(share * len(classes)):
            chosen |= {*together[key]}
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
    """The split that each name gives, or "".

    Its words tell, without those that all names share; other words count unless the names of all
    hold those of one split each, and these differ.
    """
    if (named := options.named()) or options.splits == "none":
        return {name: named.get(name, "") for name in names}
    words = {name: _words(name) if name.isascii() else set() for name in names}
    common = set.intersection(*words.values()) if len(words) > 1 else set()
    found = {
        name: {SPLIT_NAMES.get(w) or SPLIT_NAMES.get(w.removesuffix("set"), "") for w in given}
        for name, given in ((name, words[name] - NEUTRAL - common) for name in words)
    }
    both, known = {"train", "validation"}, {name: found[name] - {""} for name in found}
    if all(len(splits) == 1 for splits in known.values()) and len(set().union(*known.values())) > 1:
        found = known
    return {
        name: "train" if splits == both else min(splits) if len(splits) == 1 else ""
        for name, splits in found.items()
    }


def _searchable(images: Collection[tuple[str | None, Hashable]]) -> bool:
    """Whether most classes of the queries are in the gallery, given split and class of images."""
    test, gallery = (
        {name for split, name in images if split == which} for which in ("test", "gallery")
    )
    return 2 * len(test & gallery) > len(test)


def column_of(kind: str, names: Sequence[str]) -> str:
    """The column of a table that holds a path, class, split or role, by its name; "" for none."""
    plain = {"".join(re.findall(r"[^\W_]+", name)).lower(): name for name in reversed(names)}
    return next((plain[usual] for usual in COLUMNS[kind].split() if usual in plain), "")


def _of_columns(
    rows: Sequence[Entry], options: Options, doubts: list[str]
) -> tuple[str, list[Entry]]:
    """What the columns of a table are, and its rows with class and split; adds `doubts`."""
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
    chosen = "" if options.splits == "none" else chosen
    if chosen and not options.named() and "gallery" in splits[chosen].values():
        pairs = [(splits[chosen].get(texts[chosen][i]), texts[label][i]) for i in range(len(rows))]
        chosen = chosen if _searchable(pairs) else ""
    if unknown := {text for text in texts.get(chosen, ()) if text and not splits[chosen].get(text)}:
        what = f"the column {chosen!r} holds {min(unknown)!r}, which is no split"
        raise DataError(f"{what}; {NAME_SPLITS}")
    doubts += [
        f"the column {name!r} looks like splits and is {'' if name == chosen else 'not '}read so"
        for name in fitting
        if name != chosen or name != usual
    ]
    if usual and usual not in (*fitting, chosen) and 1 < len(few.get(usual, ())) < 5:
        given = ":".join(sorted(few[usual]))
        doubts.append(f"the column {usual!r} is not used; --splits={given}, in order, if it splits")
    flags = {
        name: flag
        for name in others
        if options.splits != "none" and set(map(str.lower, texts[name])) <= TRUE | FALSE
        if (flag := _flag(name))
    }
    held = set(flags.values()) - ROLES.keys()
    retrieval = bool(role and any(texts[role])) or not ROLES.keys().isdisjoint(flags.values())

    rest_role = ""  # a single column such as is_query, of the same classes, tells both roles
    if len(flags) == 1 and not chosen and not role and {*flags.values()} <= ROLES.keys():
        ((name, flag),) = flags.items()
        other = min(ROLES.keys() - {flag})
        sides = [ROLES[flag if text.lower() in TRUE else other] for text in texts[name]]
        rest_role = other if _searchable([*zip(sides, texts[label], strict=True)]) else ""

    def split(i: int) -> str:
        given = splits[chosen].get(texts[chosen][i], "") if chosen else ""
        true = {flag for name, flag in flags.items() if texts[name][i].lower() in TRUE}
        roles = (true & ROLES.keys()) | ({texts[role][i].lower()} - {""} if role else set())
        roles = roles or {rest_role} - {""}
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
            split=split(i) or row.split,
            metadata={name: row.metadata[name] for name in rest},
        )
        for i, row in enumerate(rows)
    ]
    return ", ".join(told), found


def _flag(column: str) -> str:
    """The split or role that a column such as "is_query" or "is_training_img" is about, or ""."""
    words = _words(column) - NEUTRAL
    word = words.pop() if len(words) == 1 else ""
    split = SPLIT_NAMES.get(word, "")
    return word if word in ROLES else "" if split == "gallery" else split


def _of_folders(rows: Sequence[Entry], options: Options, doubts: list[str]) -> list[Entry]:
    """The rows with class and split from the folders in their names; adds `doubts` about that.

    A class is the path of its folder, without folders that all classes are in and those that give
    the split or a part. Folders inside a folder that holds images belong to its class.
    """
    given = [tuple(row.id.split("/")[:-1]) for row in rows]
    twice = {a for parts in given for a, b in pairwise(parts) if likeness(a) == likeness(b)}
    places = [_undoubled(parts) for parts in given]
    images = Counter(places)
    top = _top(images)
    around = [name for name, split in splits_of(top, options).items() if split]
    doubts += [f"all images are in the folder {n!r}, so it gives no split" for n in around[:1]]
    bare = {parts: parts[len(top) :] for parts in images}
    level, split_of = _split_level(set(bare.values()), options)
    splits = {p: split_of.get("".join(rest[level : level + 1]), "") for p, rest in bare.items()}
    inner = {parts: rest[:level] + rest[level + 1 :] for parts, rest in bare.items()}
    if not split_of:
        words = _split_words(inner.values(), options, doubts)
        inner = {p: tuple(n for n in rest if n not in words) or rest for p, rest in inner.items()}
    if len({rest[-1:] for rest in inner.values()}) == 1 and max(map(len, inner.values())) > 1:
        inner = {parts: rest[:-1] for parts, rest in inner.items()}
    outside = {parts for parts in images if split_of and not splits[parts]}
    loose = {parts for parts in images if not inner[parts]} - outside
    inside = images.keys() - loose - outside
    for left, where in ((loose, "no class folder"), (outside, "none of the folders of splits")):
        stray = [row.id for row, parts in zip(rows, places, strict=True) if parts in left]
        if not stray:
            continue
        verb = "is" if len(stray) == 1 else "are"
        what = f"{counted(len(stray), 'image')}, e.g. {stray[0]!r}, {verb} in {where}"
        if len(stray) > sum(images[parts] for parts in inside):
            folder = stray[0].rpartition("/")[0].rpartition("/")[2]
            remedy = f", or give --splits=none if {folder!r} is a class" if folder else ""
            raise DataError(f"{what}: put the images of each class into a folder{remedy}")
        doubts.append(f"{what}, and left out")
    classes = _classes({inner[parts] for parts in inside}, twice, options, doubts)
    return [
        row._replace(class_name="/".join(classes[inner[parts]]), split=row.split or splits[parts])
        for row, parts in zip(rows, places, strict=True)
        if parts in inside
    ]


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


def _split_level(folders: Collection[Folders], options: Options) -> tuple[int, dict[str, str]]:
    """The level of the folders that give the split of every image, and the split of each of them;
    a level below all folders if there is none.

    A folder without class folders, such as of unlabelled images, may be anywhere if it is named so.
    A gallery holds most of the classes of the queries.
    """
    named, depth = bool(options.named()), max(map(len, folders))
    for level in range(depth):
        holding = {parts for parts in folders if len(parts) > level + 1} or folders
        names = splits_of({parts[level] for parts in holding if len(parts) > level}, options)
        short = {parts[-1] for parts in folders if 0 < len(parts) <= level}
        given = all(names.values()) and all(splits_of([name], options)[name] for name in short)
        if given and "gallery" in names.values():
            given = _searchable(
                [(names[p[level]], p[:level] + p[level + 1 :]) for p in holding if len(p) > level]
            )
        given = any(names.values()) if named else given
        if given and (len(names) > 1 or named):
            return level, names
    if named:
        raise DataError(f"--splits={options.splits}: there are no folders of these names")
    return depth, {}


def _split_words(
    folders: Collection[Folders], options: Options, doubts: list[str]
) -> Collection[str]:
    """The names that look like splits and are no class, because the classes are to be divided.

    Refuses folders for training and test beside folders that give no split; adds a doubt about
    others.
    """
    looks = {name: splits_of([name], options)[name] for parts in folders for name in parts}
    words = sorted(name for name, split in looks.items() if split)
    if options.splits == "classes":
        return words
    for level in range(max(map(len, folders))):
        held = {parts[level] for parts in folders if len(parts) > max(level, 1)}
        if {"train", "test"} <= {looks[name] for name in held}:
            ends = [name for name in words if name in held]
            raise DataError(
                f"the folders {ends[0]!r} and {ends[-1]!r} look like splits, but others beside "
                f"them do not; {NAME_SPLITS}, {NO_SPLITS}"
            )
    if words:
        listed = ", ".join(map(repr, words[:4]))
        doubts.append(f"read as classes, although their names look like splits: {listed}")
    return ()


def _classes(
    folders: Collection[Folders], twice: Collection[str], options: Options, doubts: list[str]
) -> dict[Folders, Folders]:
    """The class of each folder of images; `twice` are names of doubled folders. Adds `doubts`."""
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
    named = _shortened(set(outer.values()), twice, doubts if chosen == "auto" else [])
    if chosen == "auto":
        _check_crossing(set(named.values()))
    else:
        named = {label: label[READINGS[chosen]] for label in named}
    if deep := sorted(label for label in set(named.values()) if len(label) > 1):
        above = counted(len({label[:-1] for label in deep}), "folder")
        verb = "is a folder" if len(deep) == 1 else "are folders"
        doubts.append(
            f"{counted(len(deep), 'class')}, e.g. {'/'.join(deep[0])!r}, {verb} in {above}; if "
            "such folders are parts of one class, give --classes=top, or --session=folder for days"
        )
    return {parts: named[outer[parts]] for parts in folders}


def _shortened(
    labels: Collection[Folders], twice: Collection[str], doubts: list[str]
) -> dict[Folders, Folders]:
    """The labels without levels at which all have the same name, last folders that are days or
    other sessions, and parts that hold the same classes, such as folds. Adds `doubts`."""
    depth = min(map(len, labels), default=0)
    same = [i for i in range(depth) if len({label[i] for label in labels}) == 1][: depth - 1]
    short = {
        label: tuple(name for i, name in enumerate(label) if i not in same) for label in labels
    }
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
            short = {label: s[:level] + s[level + 1 :] or s for label, s in short.items()}
            listed = ", ".join(map(repr, names[:3]))
            doubts.append(f"the folders {listed} hold the same classes and are joined")
    return short


def _is_numbered(name: str, words: Collection[str]) -> bool:
    """Whether a name is one of some words, perhaps with a number, or a date if these are those of
    sessions."""
    if words is SESSIONS and DATE.fullmatch(name):
        return True
    letters = _words(name)
    stems = {letter for letter in letters if len(letter) > 1}
    kinds = {stem.removesuffix("s") for stem in stems - NEUTRAL or stems}
    known = bool(kinds) and kinds <= {*words, *(() if words is SESSIONS else NEUTRAL)}
    numbered = any(map(str.isdigit, name)) or any(len(letter) == 1 for letter in letters)
    return known and (words is SESSIONS or numbered)


def _crossing(labels: Collection[Folders]) -> list[int]:
    """The levels whose folders hold mostly the same names, without the last one."""
    found = []
    for level in range(max(map(len, labels), default=0) - 1):
        inside: dict[str, set[Folders]] = {}
        for label in labels:
            if len(label) > level + 1:
                rest = tuple(map(likeness, label[:level] + label[level + 1 :]))
                inside.setdefault(label[level], set()).add(rest)
        counts = Counter(rest for names in inside.values() for rest in names)
        shared = [sum(counts[rest] > 1 for rest in names) for names in inside.values()]
        most = sum(
            2 * count > len(names) for count, names in zip(shared, inside.values(), strict=True)
        )
        if most and 2 * most >= len(inside):
            found.append(level)
    return found


def _check_crossing(labels: Collection[Folders]) -> None:
    """Raises DataError if folders hold mostly the same names, so that one level is the class."""
    if not (levels := _crossing(labels)):
        return
    level = levels[0]
    classes = {name: {label[part] for label in labels} for name, part in READINGS.items()}
    readings = [
        f"--classes={name}: {counted(len(found), 'class')}, e.g. {'/'.join(min(found))!r}"
        for name, found in classes.items()
    ]
    names = sorted({label[level] for label in labels if len(label) > level})
    listed = ", ".join(map(repr, names[:3])) + (", …" if names[3:] else "")
    raise DataError(
        f"the folders {listed} hold mostly the same names, which can be read as "
        f"{'; '.join(readings)}; choose one (in training, data.classes), or name the folders that "
        "are splits, e.g. --splits=train:test (data.splits)"
    )


def mixed_splits(page: Understood, options: Options) -> str:
    """A sentence if test classes are in other splits or, unless these are named, alike; or ""."""
    classes = page.classes()
    test = {*classes.get("test", ()), *classes.get("gallery", ())}
    for name, split in (("training", "train"), ("validation", "validation")):
        seen = set(classes.get(split, ()))
        if shared := sorted(seen & test):
            verb = "is" if len(shared) == 1 else "are"
            number = f"{counted(len(shared), 'class')} {verb}"
            return (
                f"{number} in both {name} and test ({listed(shared)}): test classes must be new "
                f"to the model; {DIVIDE}, or train with data.splits=classes"
            )
        alike = [group for group in page.near if seen & set(group) and test & set(group)]
        if alike and not options.named():
            first, second = min(seen & set(alike[0])), min(test & set(alike[0]))
            more = f" ({len(alike) - 1} more such pairs)" if alike[1:] else ""
            return (
                f"the classes {first!r} in {name} and {second!r} in test look like the same "
                f"one{more}; rename one, {DIVIDE} or, if they differ, name the splits, e.g. "
                "--splits=train:valid:test"
            )
    return ""


def _doubts(
    page: Understood, names: Mapping[str, str], options: Options, reads: Sequence[str]
) -> list[str]:
    found, counts = list[str](), Counter(names.values())
    if merged := [
        sorted(given for given in names if names[given] == name)
        for name, count in counts.items()
        if count > 1
    ]:
        verb = "is" if len(merged) == 1 else "are"
        several = f"{counted(len(merged), 'class')} {verb} written in several ways"
        found.append(f"{several}, e.g. {' and '.join(map(ascii, min(merged)))}")
    if page.near:
        pairs = [" and ".join(map(ascii_if_alike(group), group)) for group in page.near]
        shown = listed(pairs, 3)
        found.append(f"near-equal names of classes: {shown}; rename those that are the same")
    if 0 < page.undecided < len(page.entries):
        share = f"{100 * options.test_share:g} % of their classes are for test"
        number = counted(page.undecided, "image")
        found.append(f"{number} of {len(page.entries):,} have no split; {share}")
    if missing := page.missing():
        share = f"{100 * len(missing) / len(page.entries):.3g} % of the listed images"
        found.append(f"{share} ({len(missing):,}) are missing, e.g. {missing[0]!r}")
    found += _masks(page.entries)
    if reads:  # a table lists the images
        used = {entry.file for entry in page.entries}
        images = [path for path in page.survey.files if is_image(path)]
        if unused := [path for path in images if page.survey.files[path] not in used]:
            shown = f"{counted(len(unused), 'image')}, e.g. {unused[0]!r}"
            found.append(f"left out, because the table does not list them: {shown}")
    return [*found, *page.survey.doubts(reads)]


def _masks(entries: Sequence[Entry]) -> list[str]:
    """Doubts about folders of PNG files that are named like the images of one other folder."""
    masks, owners = dict[str, list[Entry]](), dict[str, str]()  # by folder; stem -> folder
    for entry in entries:
        folder, name = posixpath.split(entry.id)
        stem, suffix = posixpath.splitext(name)
        if suffix.lower() == ".png":
            masks.setdefault(folder, []).append(entry)
        else:
            owners[stem] = folder if owners.get(stem, folder) == folder else ""
    sizes, doubts = Counter(owners.values()), list[str]()
    for folder, images in masks.items():
        stems = [posixpath.splitext(posixpath.basename(entry.id))[0] for entry in images]
        ((owner, count),) = Counter(owners.get(stem, "") for stem in stems).most_common(1)
        if owner and count > 0.9 * max(len(images), sizes[owner]):
            doubts.append(
                f"the images in {folder!r} look like masks, because they are PNG files named like "
                f"those in {owner!r}; they are read as the class {images[0].class_name!r} unless "
                "you remove them from the source"
            )
    return doubts


def ascii_if_alike(group: Sequence[str]) -> Callable[[object], str]:
    """How to show names: invisible differences as escapes."""
    return ascii if len({re.sub(r"\W", "", name) for name in group}) == 1 else repr
