"""How a source is understood: its images, their classes and splits, and doubts about them.

Training, `prepare`, `evaluate`, `enroll` and `inspect` read images by `understand`. What is
doubtful is a sentence; what certainly misleads is an error that names the option to decide.
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
    undecided: int  # images without a given split, for which `Options.test_share` decides

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
    entries = [entry._replace(class_name=names[entry.class_name]) for entry in entries]
    if options.splits in ("classes", "none"):
        entries = [entry._replace(split="") for entry in entries]
    undecided = [entry.class_name for entry in entries if not entry.split]
    open_classes = set(undecided)
    tested = test_classes(open_classes, options.test_share)
    drawn = {name: "test" if name in tested else "train" for name in open_classes}
    entries = [e if e.split else e._replace(split=drawn[e.class_name]) for e in entries]
    page = Page(entries, (), found, near_equal(names.values()), len(undecided))
    missing = page.missing()
    if entries and len(missing) == len(entries):
        images = [p for p, file in found.files.items() if is_image(p) and not is_missing(file)]
        there = f"{counted(len(images), 'image')}, e.g. {images[0]}" if images else ""
        raise DataError(
            f"{source}: all {len(missing):,} listed images are missing, e.g. {missing[0]}; the "
            f"source holds {there or 'no images; give their folder as well'}"
        )
    if not labelled:
        _check_splits(page, source, decided=bool(options.named()))
    return page._replace(doubts=_doubts(recipe, page, names, options))


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


def _check_splits(page: Page, source: str, *, decided: bool) -> None:
    """Raises DataError if classes of test are in other splits or, unless `decided`, alike."""
    classes = page.classes()
    test = {*classes.get("test", ()), *classes.get("gallery", ())}
    for name, split in (("training", "train"), ("validation", "validation")):
        seen = set(classes.get(split, ()))
        if shared := sorted(seen & test):
            raise DataError(
                f"{source}: {len(shared)} classes are in both {name} and test ({_listed(shared)}): "
                f"test classes must be new to the model; {DIVIDE}, or give --splits=none if these "
                "splits are classes themselves"
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


def _doubts(recipe: Recipe, page: Page, names: Mapping[str, str], options: Options) -> list[str]:
    found = recipe.doubts(page.survey.files, options)
    spellings: dict[str, list[str]] = {}
    for given, name in sorted(names.items()):
        spellings.setdefault(name, []).append(given)
    if merged := [given for given in spellings.values() if len(given) > 1]:
        verb = "is" if len(merged) == 1 else "are"
        several = f"{counted(len(merged), 'class')} {verb} written in several ways"
        found.append(f"{several}, e.g. {' and '.join(map(ascii, min(merged)))}")
    if page.near:
        pairs = [" and ".join(map(repr, group)) for group in page.near[:3]]
        listed = _listed(pairs, len(page.near))
        found.append(f"near-equal names of classes: {listed}; rename those that are the same")
    if 0 < page.undecided < len(page.entries):
        share = f"{100 * options.test_share:g} % of their classes are for test"
        number = counted(page.undecided, "image")
        found.append(f"{number} of {len(page.entries):,} have no split; {share}")
    if missing := page.missing():
        share = f"{100 * len(missing) / len(page.entries):.3g} % of the listed images"
        found.append(f"{share} ({len(missing):,}) are missing, e.g. {missing[0]}")
    used = {entry.file for entry in page.entries}
    images = [path for path in page.survey.files if is_image(path)]
    if unused := [path for path in images if page.survey.files[path] not in used]:
        found.append(f"{counted(len(unused), 'image')}, e.g. {unused[0]}, not listed and not used")
    skipped = {key: n for key, n in page.survey.skipped.items() if key not in recipe.reads}
    return [*found, *page.survey._replace(skipped=skipped).doubts()]


def _listed(names: Sequence[str], count: int = 0) -> str:
    more = (count or len(names)) - len(names[:5])
    return ", ".join(names[:5]) + (f" and {more} more" if more else "")
