"""Which data set a folder or a table is, and the page of `dml-jax inspect` about it."""

import pkgutil
import shlex
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from dml_jax.config import plugin_module
from dml_jax.data.files import MISSING, Files, is_missing
from dml_jax.data.prepare import duplicates
from dml_jax.data.sources import AUTO, Options, Recipe, list_files, packed_files, survey
from dml_jax.data.understand import Understood, mixed_splits, understood
from dml_jax.errors import DataError, counted

REFUSED = "not read as"
FEW = 3  # classes with fewer images are reported


@cache
def _recipes() -> Mapping[str, Recipe]:
    """The recipes: data sets with official files, then tables, then folders, which read most."""
    found = {}
    for module in pkgutil.iter_modules([str(Path(__file__).parent / "formats")]):
        if recipe := getattr(plugin_module("data", module.name), "RECIPE", None):
            found[module.name] = recipe
    order = sorted(found, key=lambda name: (not found[name].home, name == "folder", name))
    return {name: found[name] for name in order}


def recognised(files: Files, options: Options, source: str) -> tuple[str, Understood]:
    """The data set that files are, with all images understood; `source` is for messages."""
    found, reasons = survey(files.items()), []
    for name, recipe in _recipes().items():
        if not recipe.recognised(found.files):
            continue
        try:
            table = recipe.read(found.files)
        except DataError as error:
            reasons.append(f"{REFUSED} {name}: {error}")
            continue
        try:
            page = understood(recipe, table, found, options, labelled=True)
        except DataError as error:
            raise DataError(f"{source}: {'; '.join([*reasons, str(error)])}") from error
        return name, page._replace(doubts=[*reasons, *page.doubts])
    no_images = "no images: give a folder with one folder of images per class, or with a table"
    raise DataError(f"{source}: {'; '.join(reasons or packed_files(files)) or no_images}")


def refusal(page: Understood) -> str:
    """Why the files, which look like a published data set, are not read as it; "" if they are."""
    return next((line for line in page.doubts if line.startswith(REFUSED)), "")


def page(path: Path, options: Options, source: str) -> list[str]:
    """The lines that tell how a folder or a table is understood."""
    name, found = recognised(list_files([path], "SOURCE"), options, source)
    missing = {i: MISSING for i, entry in enumerate(found.entries) if is_missing(entry.file)}
    there = {*range(len(found.entries))} - {*missing}
    reasons = missing | duplicates.find_unmatched(found.entries, there)
    kept = [entry for i, entry in enumerate(found.entries) if i not in reasons]
    problem = mixed_splits(found, options) or duplicates.too_few_classes(kept)
    refused = [line for line in found.doubts if line.startswith(REFUSED)]
    doubts = [f"doubt: {line}" for line in found.doubts if line not in refused]
    if reasons:
        first = f"the first is {found.entries[min(reasons)].id!r}: {reasons[min(reasons)]}"
        count = f"{len(reasons):,} of {counted(len(found.entries), 'image')}"
        doubts.append(f"doubt: training and prepare leave out {count}, {first}")
    facts, advice = _facts(name, found, options), _advice(name, path, found, options, problem)
    return [*refused, *facts, *doubts, *advice]


def _facts(name: str, page: Understood, options: Options) -> list[str]:
    recipe, classes = _recipes()[name], page.classes()
    what = f"the layout of its owners ({recipe.home})" if recipe.home else "your own data"
    divided = f"none given, so {100 * options.test_share:g} % of the classes are for test"
    given = page.undecided < len(page.entries)
    lines = [f"read as: {name}, {what}"]
    lines += [f"columns: {page.columns}"] if page.columns else []
    lines.append(f"splits: {'given' if given else divided}")
    for split, names in classes.items():
        images = Counter(entry.class_name for entry in page.entries if entry.split == split)
        ends = repr(names[0]) + (f" to {names[-1]!r}" if names[1:] else "")
        least, most = min(images.values()), max(images.values())
        size = f"{least:,} to {most:,} images" if least < most else counted(most, "image")
        total, number = counted(images.total(), "image"), counted(len(names), "class")
        lines.append(f"{split}: {total} of {number}, {ends}; {size} each")
        if few := [label for label in names if images[label] < FEW]:
            number = counted(len(few), "class")
            lines.append(f"  with fewer than {FEW} images: {number}, e.g. {few[0]!r}")
    number = counted(len(set().union(*classes.values())), "class")
    return [*lines, f"in all: {counted(len(page.entries), 'image')} of {number}"]


def _advice(name: str, path: Path, page: Understood, options: Options, problem: str) -> list[str]:
    """The commands that read the source as the page says, after what keeps them from it."""
    recipe = _recipes()[name]
    if divide := "--splits=classes" in problem:
        options = options._replace(splits="classes")
    values = {key: getattr(options, key) for key in ("splits", "classes", "session")}
    given = "".join(
        f" --{key}={shlex.quote(value)}"
        for key, value in values.items()
        if value != getattr(AUTO, key)
    )
    images = Counter(entry.split for entry in page.entries)
    complete = all(images[split] == count for split, (count, _) in (recipe.counts or {}).items())
    given += "" if complete else " --subset"
    source = shlex.quote(str(path))
    output = shlex.quote(f"data/{path.absolute().name.split('.')[0]}")
    command = f"dml-jax prepare --name={name} --source={source}{given} --output={output}"
    what = "fix that, or read it like this anyway" if refusal(page) else "prepare it"
    lines = [f"error in training: {problem}"] if problem else []
    enough = len({entry.class_name for entry in page.entries}) >= 4  # for both splits
    if not problem or (divide and enough):
        lines.append(f"{what}: {command}")
    if path.is_dir() and recipe.in_place and not problem and not given and not refusal(page):
        lines.append(f"or use it in place: --config.data.name={name} --config.data.path={source}")
    return lines
