"""Image folders with one subfolder per class.

    photos/oak/1.jpg              the classes are split into training and test classes,

    photos/train/oak/1.jpg        or folders named like train, test (or query), and optionally
    photos/test/elm/7.jpg         validation and gallery give the split, at any level

Structure comes first. If the folders of a level hold mostly the same names, only one of the two
levels is the class. It is the lower one if the upper names are words for splits; otherwise the user
decides.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile

from dml_jax.class_names import likeness
from dml_jax.data import sessions
from dml_jax.data.files import IMAGE_SUFFIXES, Entry, Files, is_image
from dml_jax.data.sources import NAME_SPLITS, NO_SPLITS, Options, Recipe, Table, packed_files
from dml_jax.errors import DataError, counted

# The part of nested folders that is the class.
READINGS = {"leaf": slice(-1, None), "top": slice(1), "path": slice(None)}

Folders = tuple[str, ...]  # the names of the folders that an image is in, or some of them


def read(files: Files, options: Options) -> Table:
    """Takes every file with the suffix of an image as one."""
    rows = [Entry(path, file, "", "") for path, file in files.items() if is_image(path)]
    if not rows:
        reasons = packed_files(files) or [
            "there is no class folder with images; put the images of each class into a folder, "
            f"with names that end in {', '.join(IMAGE_SUFFIXES)}"
        ]
        raise DataError("; ".join(reasons))
    doubts = list[str]()
    return Table(read_folders(rows, options, doubts), doubts)


def read_folders(rows: Sequence[Entry], options: Options, doubts: list[str]) -> list[Entry]:
    """The rows with class and split from the folders in their names; adds `doubts`.

    The class is the path of the folder, without folders that give the split, contain all classes
    or are named like the folder around them. Folders inside a folder with images belong to its
    class. Raises DataError if the folders can be read in several ways, or most images are in no
    folder of a class.
    """
    paths = [row.id.rpartition("/")[0] for row in rows]
    undoubled = {path: _undoubled(path.split("/") if path else ()) for path in {*paths}}
    places = [undoubled[path] for path in paths]
    images = Counter(places)
    top = _top(images)
    for name in filter(options.find_split, top[:1]):
        doubts.append(f"all images are in the folder {name!r}, so it gives no split")
    bare = {place: place[len(top) :] for place in images}
    level, split_of = _split_level({*bare.values()}, options)
    splits = {p: split_of.get("".join(rest[level : level + 1]), "") for p, rest in bare.items()}
    if not split_of:
        _check_words({*bare.values()}, options, doubts)
    outside = {place for place in images if split_of and not splits[place]}
    inner = {p: bare[p][:level] + bare[p][level + 1 :] for p in images.keys() - outside}
    inner = _without_shared(inner, images)
    loose = {place for place, names in inner.items() if not names}
    inside = inner.keys() - loose
    for strays, where in ((loose, "no class folder"), (outside, "none of the folders of splits")):
        if stray := [row.id for row, place in zip(rows, places, strict=True) if place in strays]:
            verb = "is" if len(stray) == 1 else "are"
            what = f"{counted(len(stray), 'image')}, e.g. {stray[0]!r}, {verb} in {where}"
            if len(stray) > sum(images[place] for place in inside):
                folder = stray[0].split("/")[-2:-1]
                remedy = f", or give --splits=none if {folder[0]!r} is a class" if folder else ""
                raise DataError(f"{what}: put the images of each class into a folder{remedy}")
            doubts.append(f"{what}, and left out")
    classes = _classes({inner[place] for place in inside}, options, doubts)
    return [
        row._replace(class_name="/".join(classes[inner[place]]), split=row.split or splits[place])
        for row, place in zip(rows, places, strict=True)
        if place in inside
    ]


def _undoubled(names: Sequence[str]) -> Folders:
    """Folders without those that are named like the folder around them."""
    around = ["", *names]
    return tuple(n for n, a in zip(names, around, strict=False) if likeness(n) != likeness(a))


def _top(images: Mapping[Folders, int]) -> Folders:
    """The folders that all classes are in; those of loose images, if they hold several others with
    more images each."""
    ends = zip(min(images), max(images), strict=False)
    top: Folders = tuple(a for a, b in takewhile(lambda pair: pair[0] == pair[1], ends))
    below = Counter[Folders]()
    for folders, count in images.items():
        below[folders[len(top) : len(top) + 1]] += count
    loose = below.pop((), 0)
    is_class = loose and (len(below) < 2 or loose > min(below.values()))
    return top[:-1] if is_class else top


def _without_shared(
    folders: Mapping[Folders, Folders], images: Mapping[Folders, int]
) -> dict[Folders, Folders]:
    """Some folders of each place without those that all share, at the start and as the last one."""
    counts = Counter[Folders]()
    for place, names in folders.items():
        counts[names] += images[place]
    start, depth = len(_top(counts)), max(map(len, counts))
    shared = len({names[-1:] for names in counts}) == 1 and depth > start + 1
    return {place: names[start : -1 if shared else None] for place, names in folders.items()}


def _split_level(folders: Collection[Folders], options: Options) -> tuple[int, dict[str, str]]:
    """The level of the folders that give the split of every image, and the split of each of them;
    a level below all folders if there is none.

    A folder of images beside folders of classes, such as "test", may also be a split.
    """
    depth = max(map(len, folders))
    for level in range(depth):
        names = {place[level] for place in folders if len(place) > level + 1}
        ends = {place[level] for place in folders if len(place) == level + 1}
        names |= {name for name in ends if not names or options.find_split(name)}
        if splits := options.find_splits(names):
            return level, splits
    if options.parse_splits():
        raise DataError(f"--splits={options.splits}: there are no folders of these names")
    return depth, {}


def _check_words(folders: Collection[Folders], options: Options, doubts: list[str]) -> None:
    """Adds a doubt about names that look like splits and are no split; raises DataError if such
    folders are for training and test."""
    looks = {name: options.find_split(name) for place in folders for name in place}
    names = sorted(name for name, split in looks.items() if split)
    nested = {name for place in folders if len(place) > 1 for name in place}
    if {"train", "test"} <= {looks[name] for name in nested}:
        first, *_, last = (name for name in names if name in nested)
        raise DataError(
            f"the folders {first!r} and {last!r} look like splits, but others beside them do not; "
            f"{NAME_SPLITS}, {NO_SPLITS}"
        )
    if names:
        examples = ", ".join(map(repr, names[:4]))
        doubts.append(f"read as classes, although their names look like splits: {examples}")


def _classes(
    folders: Collection[Folders], options: Options, doubts: list[str]
) -> dict[Folders, Folders]:
    """The class of each folder of images; adds `doubts`."""
    owners = {p: next(p[:i] for i in range(1, len(p) + 1) if p[:i] in folders) for p in folders}
    inside = sorted(place for place in folders if owners[place] != place)
    if options.session == sessions.FOLDER:  # the class is the folder that holds folders of images
        sizes = Counter(owners.values())
        owners = {p: o if sizes[o] > 1 else o[:-1] or o for p, o in owners.items()}
    elif inside:
        verb = "counts" if len(inside) == 1 else "count"
        doubts.append(
            f"{counted(len(inside), 'folder')} inside class folders, e.g. {'/'.join(inside[0])!r}, "
            f"{verb} as part of that class, here {'/'.join(owners[inside[0]])!r}"
        )
    reading = options.classes
    if reading == "auto":
        reading = "path"
        if options.splits != "none":
            _check_crossing({*owners.values()})
    classes = {place: owner[READINGS[reading]] for place, owner in owners.items()}
    if deep := sorted(name for name in {*classes.values()} if len(name) > 1):
        above = counted(len({name[:-1] for name in deep}), "folder")
        verb = "is a folder" if len(deep) == 1 else "are folders"
        doubts.append(
            f"{counted(len(deep), 'class')}, e.g. {'/'.join(deep[0])!r}, {verb} in {above}; if "
            "such folders are parts of one class, give --classes=top, or --session=folder for days"
        )
    return classes


def _check_crossing(labels: Collection[Folders]) -> None:
    """Raises DataError if at least half of the folders of a level hold mostly names that are also
    elsewhere, so that one level is the class."""
    for level in range(max(map(len, labels), default=0) - 1):
        inside = defaultdict[str, set[Folders]](set)
        for label in labels:
            if len(label) > level + 1:
                rest = label[:level] + label[level + 1 :]
                inside[label[level]].add(tuple(map(likeness, rest)))
        counts = Counter(rest for names in inside.values() for rest in names)
        counts.update(tuple(map(likeness, label)) for label in labels if len(label) <= level + 1)
        shared = [sum(counts[rest] > 1 for rest in names) / len(names) for names in inside.values()]
        if 2 * sum(share > 0.5 for share in shared) < len(shared):
            continue
        classes = {key: {label[part] for label in labels} for key, part in READINGS.items()}
        readings = [
            f"--classes={key}: {counted(len(names), 'class')}, e.g. {'/'.join(min(names))!r}"
            for key, names in classes.items()
        ]
        examples = ", ".join(map(repr, sorted(inside)[:3]))
        raise DataError(
            f"folders such as {examples} hold mostly the same names, which can be read as "
            f"{'; '.join(readings)}; choose one (in training, data.classes), name the folders that "
            "are splits, e.g. --splits=train:test (data.splits), or give --session=folder if the "
            "inner folders are sessions, such as days"
        )


def matches(files: Files) -> bool:
    return any(map(is_image, files))


RECIPE = Recipe(read, reads=(), in_place=True, matches=matches)
