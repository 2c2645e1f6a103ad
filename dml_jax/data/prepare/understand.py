"""How a source is understood: its images with class and split, and a page of what the user should
know about that.

Every reader of images goes through `understand`: training, `prepare`, `evaluate`, `enroll` and
`inspect`. What is only doubtful is a sentence; what certainly misleads is an error that names the
option to decide.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from dml_jax.class_names import likeness, near_equal, normalised
from dml_jax.data.files import SPLITS, Entry, Files, is_image, is_missing
from dml_jax.data.prepare.sources import Options, Recipe, Survey, survey
from dml_jax.errors import DataError, counted

SHOWN = 10  # lines of doubts that a command prints
DIVIDE = "divide the classes with dml-jax prepare --splits=classes"


class Page(NamedTuple):
    """How a source is understood."""

    entries: Sequence[Entry]
    doubts: Sequence[str]  # sentences
    survey: Survey
    near: Sequence[Sequence[str]]  # groups of near-equal names of classes
    # Whether the source gives no splits, so that the classes are divided by `Options.test_share`.
    divided: bool

    def classes(self) -> dict[str, list[str]]:
        """The sorted names of the classes of each split that has images."""
        names = {
            split: {entry.class_name for entry in self.entries if entry.split == split}
            for split in SPLITS
        }
        return {split: sorted(found) for split, found in names.items() if found}

    def missing(self) -> list[str]:
        """The images that a table lists and the source lacks."""
        return [entry.id for entry in self.entries if is_missing(entry.file)]


def understand(
    recipe: Recipe, files: Files, options: Options, source: str, *, labelled: bool = False
) -> Page:
    """How a recipe reads files; `source` stands for them in messages.

    With `labelled`, the images are to be compared with each other, whatever their split, so no
    class is held out. Raises DataError if the files are not what the recipe reads, none of the
    images exists, or test classes are also classes of training or validation, or near-equal to one.
    """
    found = survey(files.items())
    try:
        entries = recipe.find(found.files, options)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    names = {name: normalised(name) for name in {entry.class_name for entry in entries}}
    divide = options.splits in ("classes", "none")
    entries = [
        e._replace(class_name=names[e.class_name], split="" if divide else e.split) for e in entries
    ]
    tested = test_classes(
        {entry.class_name for entry in entries if not entry.split}, options.test_share
    )
    divided = not all(entry.split for entry in entries)
    by_class = {True: "test", False: "train"}
    entries = [
        entry._replace(split=entry.split or by_class[entry.class_name in tested])
        for entry in entries
    ]
    page = Page(entries, (), found, near_equal(names.values()), divided)
    missing = page.missing()
    if entries and len(missing) == len(entries):
        there = [path for path in found.files if is_image(path)]
        raise DataError(
            f"{source}: all {len(missing):,} listed images are missing, e.g. {missing[0]}; the "
            "source holds "
            + (
                f"{counted(len(there), 'image')}, e.g. {there[0]}"
                if there
                else "no images; give their folder as well"
            )
        )
    if not labelled:
        _check_splits(page, source, decided=bool(options.named()))
    return page._replace(doubts=_doubts(recipe, page, names, options))


def test_classes(classes: Collection[str], share: float) -> set[str]:
    """Chooses the classes with the smallest SHA-256 of their name, so that adding a class moves few
    others.

    Near-equal names, which may be one class, stay together.
    """
    together: dict[str, list[str]] = {}
    for name in sorted(classes):
        together.setdefault(likeness(name), []).append(name)
    groups = sorted(
        together.values(),
        key=lambda group: hashlib.sha256(group[0].encode(errors="surrogateescape")).digest(),
    )
    chosen: set[str] = set()
    for group in groups:
        if len(chosen) < round(share * len(classes)):
            chosen |= set(group)
    return chosen


def shown(doubts: Sequence[str], source: str = "") -> list[str]:
    """The lines that a command prints about its source, at most `SHOWN`."""
    more = f"{len(doubts) - SHOWN + 1} further doubts: dml-jax inspect lists them"
    few = list(doubts) if len(doubts) <= SHOWN else [*doubts[: SHOWN - 1], more]
    return [f"{source}: {line}" if source else line for line in few]


def _check_splits(page: Page, source: str, *, decided: bool) -> None:
    """Raises DataError if test classes are in training or validation or, unless `decided`,
    near-equal to one."""
    classes = page.classes()
    test = {*classes.get("test", ()), *classes.get("gallery", ())}
    for name, split in (("training", "train"), ("validation", "validation")):
        seen = set(classes.get(split, ()))
        if shared := sorted(seen & test):
            raise DataError(
                f"{source}: {len(shared)} classes are in both {name} and test "
                f"({_listed(shared)}): test classes must be new to the model; {DIVIDE}, or give "
                "--splits=none if these splits are classes themselves"
            )
        alike = [group for group in page.near if seen & set(group) and test & set(group)]
        if alike and not decided:
            pair = [min(seen & set(alike[0])), min(test & set(alike[0]))]
            raise DataError(
                f"{source}: the classes {pair[0]!r} in {name} and {pair[1]!r} in test look like "
                f"the same one{f' ({len(alike) - 1} more such pairs)' if alike[1:] else ''}; "
                f"rename one, {DIVIDE} or, if they differ, name the splits, e.g. "
                "--splits=train:valid:test"
            )


def _doubts(recipe: Recipe, page: Page, names: Mapping[str, str], options: Options) -> list[str]:
    found = recipe.doubts(page.survey.files, options)
    merged: dict[str, list[str]] = {}
    for given, name in names.items():
        merged.setdefault(name, []).append(given)
    if merged := {name: sorted(given) for name, given in merged.items() if len(given) > 1}:
        what = "is written in several ways" if len(merged) == 1 else "are written in several ways"
        found.append(
            f"{counted(len(merged), 'class')} {what}, e.g. "
            f"{' and '.join(map(ascii, min(merged.values())))}"
        )
    if page.near:
        pairs = [" and ".join(map(repr, group)) for group in page.near[:3]]
        found.append(
            f"near-equal names of classes: {_listed(pairs, len(page.near))}; rename those that "
            "are the same"
        )
    if missing := page.missing():
        share = 100 * len(missing) / len(page.entries)
        found.append(
            f"{share:.3g} % of the listed images ({len(missing):,}) are missing, e.g. {missing[0]}"
        )
    used = {entry.file for entry in page.entries}
    if unused := [
        path for path, file in page.survey.files.items() if is_image(path) and file not in used
    ]:
        found.append(f"{counted(len(unused), 'image')}, e.g. {unused[0]}, not listed and not used")
    skipped = {
        suffix: number
        for suffix, number in page.survey.skipped.items()
        if suffix not in recipe.reads
    }
    return [*found, *page.survey._replace(skipped=skipped).doubts()]


def _listed(names: Sequence[str], count: int = 0) -> str:
    count = count or len(names)
    return ", ".join(names[:5]) + (
        f" and {count - len(names[:5])} more" if count > len(names[:5]) else ""
    )
