"""What a preparation tells the user: near-duplicates between training and test, and a summary."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dml_jax.console import Console
from dml_jax.data.prepare.sources import Entry
from dml_jax.files import write_csv

NEAR_DUPLICATES = "near_duplicates.csv"


def write_near_duplicates(directory: Path, pairs: Sequence[tuple[Entry, Entry]], console: Console) -> None:
    """Writes the names of the pairs to a table and prints some of them."""
    with (directory / NEAR_DUPLICATES).open("w", newline="", encoding="utf-8") as file:
        write_csv(file, [("train", "test"), *((a.id, b.id) for a, b in pairs)])
    if pairs:
        console.print(
            f"near-duplicates between training and test: {len(pairs)} pairs, each image with the first it resembles, "
            f"see {NEAR_DUPLICATES}; examples:"
        )
        for a, b in pairs[:3]:
            console.print(f"  {a.id} and {b.id}")


def summary(content: Mapping[str, Any]) -> list[str]:
    """Lines that summarise a prepared data set."""
    splits = [f"{name}: {of['images']} images of {of['classes']} classes" for name, of in content["splits"].items()]
    metadata = [f"metadata: {', '.join(content['metadata'])}"] if content.get("metadata") else []
    rotated = [f"{n} images have an EXIF rotation (data.exif_rotation)"] if (n := content.get("exif_rotated")) else []
    skipped = [f"{len(content['skipped'])} images were left out"] if content["skipped"] else []
    return [*splits, *metadata, *skipped, *rotated, f"sha256 {content['sha256']}"]
