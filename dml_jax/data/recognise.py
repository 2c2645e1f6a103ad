"""Which data set a folder, a table or an archive is, and the page that `dml-jax inspect` prints
about it."""

import pkgutil
import shlex
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from dml_jax import config as configs
from dml_jax.data.files import SPLITS, Entry, Files
from dml_jax.data.prepare.sources import Options, Recipe, list_files, survey
from dml_jax.data.prepare.understand import Page, understand
from dml_jax.errors import DataError, counted

REFUSED = "not read as"
FEW = 3  # images of a class below which it is named


@cache
def _recipes() -> Mapping[str, Recipe]:
    """The recipes: data sets with official files, then tables, and last the folders, which would
    read most of them."""
    names = [
        module.name for module in pkgutil.iter_modules([str(Path(__file__).parent / "formats")])
    ]
    modules = {name: configs.module("data", name) for name in names}
    found = {name: module.RECIPE for name, module in modules.items() if hasattr(module, "RECIPE")}
    return dict(
        sorted(found.items(), key=lambda pair: (not pair[1].home, pair[0] == "folder", pair[0]))
    )


def recognised(files: Files, options: Options, source: str) -> tuple[str, Page]:
    """The data set that files are, and how all of its images are read to be compared; `source` is
    for messages."""
    found, reasons = survey(files.items()).files, []
    for name, recipe in _recipes().items():
        if not recipe.recognised(found):
            continue
        try:
            entries = recipe.find(found, options)
        except DataError as error:
            reasons.append(f"{REFUSED} {name}: {error}")
            continue
        page = understand(_known(recipe, entries), files, options, source, labelled=True)
        return name, page._replace(doubts=[*reasons, *page.doubts])
    what = (
        "; ".join(reasons)
        or "no images: give a folder with one folder of images per class, or with a table"
    )
    raise DataError(f"{source}: {what}")


def refusal(page: Page) -> str:
    """Why the files, which look like a published data set, are not read as it; empty if they
    are."""
    return next((line for line in page.doubts if line.startswith(REFUSED)), "")


def _known(recipe: Recipe, entries: Sequence[Entry]) -> Recipe:
    """The recipe, with what it has found."""
    return recipe._replace(find=lambda files, options: list(entries))


def page(path: Path, options: Options, source: str) -> list[str]:
    """The lines that tell how a folder, table or archive is understood."""
    with tempfile.TemporaryDirectory(prefix="dml_jax-") as scratch:
        options = options._replace(scratch=Path(scratch))
        files = list_files([path], Path(scratch), lambda line: None, "SOURCE")
        name, found = recognised(files, options, source)
        problem = ""
        try:
            understand(_known(_recipes()[name], found.entries), files, options, source)
        except DataError as error:
            problem = str(error).removeprefix(f"{source}: ")
    return [
        *_facts(name, found, options),
        *(f"doubt: {line}" for line in found.doubts),
        *_advice(name, path, found, options, problem),
    ]


def _facts(name: str, page: Page, options: Options) -> list[str]:
    recipe, classes = _recipes()[name], page.classes()
    what = (
        f"{name}, the layout of its owners ({recipe.home})"
        if recipe.home
        else f"{name}, your own data"
    )
    given = (
        f"none given, so {100 * options.test_share:g} % of the classes are for test"
        if page.divided
        else "given"
    )
    lines = [f"read as: {what}", f"splits: {given}"]
    for split in filter(classes.__contains__, SPLITS):
        names = classes[split]
        images = Counter(entry.class_name for entry in page.entries if entry.split == split)
        ends = repr(names[0]) + (f" to {names[-1]!r}" if names[1:] else "")
        least, most = min(images.values()), max(images.values())
        sizes = (
            f"{least:,} to {most:,} images each"
            if least < most
            else f"{counted(most, 'image')} each"
        )
        lines.append(
            f"{split}: {counted(images.total(), 'image')} of {counted(len(names), 'class')}, "
            f"{ends}; {sizes}"
        )
        if few := [label for label in names if images[label] < FEW]:
            lines.append(
                f"  with fewer than {FEW} images: {counted(len(few), 'class')}, e.g. {few[0]!r}"
            )
    total = len({label for names in classes.values() for label in names})
    lines.append(f"in all: {counted(len(page.entries), 'image')} of {counted(total, 'class')}")
    lines.append(f"missing: {len(page.missing()):,} of {len(page.entries):,} images")
    lines += [f"near-equal names: {', '.join(map(repr, group))}" for group in page.near]
    return lines


def _advice(name: str, path: Path, page: Page, options: Options, problem: str) -> list[str]:
    """The commands that read the source as the page says, after what keeps them from it."""
    recipe, splits = _recipes()[name], options.splits
    if "--splits=classes" in problem:
        splits = "classes"
    given = "".join(
        f" --{key}={value}"
        for key, value in (("splits", shlex.quote(splits)), ("session", options.session))
        if value not in ("auto", "")
    )
    images = Counter(entry.split for entry in page.entries)
    complete = all(images[split] == count for split, (count, _) in (recipe.counts or {}).items())
    source, output = (
        shlex.quote(str(path)),
        shlex.quote(f"data/{path.absolute().name.split('.')[0]}"),
    )
    command = (
        f"dml-jax prepare --name={name} --source={source}{given}{'' if complete else ' --subset'} "
        f"--output={output}"
    )
    lines = [f"error in training: {problem}"] if problem else []
    lines.append(
        f"{'mend that, or read it so all the same' if refusal(page) else 'prepare it'}: {command}"
    )
    if path.is_dir() and recipe.in_place and not problem and not given and not refusal(page):
        lines.append(f"or use it in place: --config.data.name={name} --config.data.path={source}")
    return lines
