"""Downloading a data set from where its owners publish it."""

from collections.abc import Sequence
from pathlib import Path

from dml_jax.console import Console
from dml_jax.data.prepare.sources import Recipe
from dml_jax.errors import ConfigError, DataError
from dml_jax.files import cache_dir, sha256
from dml_jax.remote import downloads

MIB = 2**20


def archives(name: str, recipe: Recipe) -> tuple[Path, ...]:
    """Where the archives of a data set are kept after they were downloaded; raises ConfigError if it has no address."""
    if not recipe.downloads:
        why = f"{recipe.terms} ({recipe.home}); get it yourself and" if recipe.home else "it is your own data;"
        raise ConfigError(f"--download: {name} cannot be downloaded: {why} give it as --source")
    return tuple(cache_dir() / "downloads" / name / source.name for source in recipe.downloads)


def fetch(recipe: Recipe, targets: Sequence[Path], console: Console) -> None:
    """Downloads the archives that are missing, after printing the terms; continues an interrupted download."""
    size = sum(source.size or 0 for source in recipe.downloads) // MIB
    console.print(f"terms: {recipe.terms}")
    console.print(f"owners: {recipe.home}")
    console.print(f"please cite: {recipe.citation}")
    for source, target in zip(recipe.downloads, targets, strict=True):
        if target.is_file() and sha256(target) == source.sha256:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        console.print(f"downloading {source.url}")
        console.start_progress(f"{source.name}, MiB", (source.size or 0) // MIB)
        downloads.fetch(
            source,
            target,
            DataError,
            f"download it in a browser, from {recipe.home}, and give it as --source",
            lambda done: console.update_progress(done // MIB),
        )
    console.print(f"the archives ({size} MiB) stay in {targets[0].parent}")
