"""Embedding many images into a table; an interrupted call is continued by the next."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dml_jax import table
from dml_jax.console import Console
from dml_jax.data.sources import leave_out
from dml_jax.errors import DataError, counted
from dml_jax.files import as_text
from dml_jax.inference.embedding_model import EmbeddingModel
from dml_jax.inference.inputs import Item
from dml_jax.seal import Identity
from dml_jax.table import Growing, Table

ROWS = 2048  # images of a chunk, the most that a kill wastes

Chunk = tuple[Path, Sequence[Item]]  # the directory to write, and its images


class Engine(NamedTuple):
    """What embeds chunks: a model of this process, or the actors of a Ray cluster.

    Attributes:
      identity: of the embedding function.
      finished: whether the run has finished.
      embed: writes chunks and yields their directories.
      seconds: filled by `embed`: time to read each image; empty on a cluster.
    """

    identity: Identity
    finished: bool
    embed: Callable[[Iterable[Chunk]], Iterable[Path]]
    seconds: list[float]


def local_engine(model: EmbeddingModel) -> Engine:
    """Embeds by a model in this process."""
    seconds = list[float]()
    return Engine(
        model.identity,
        model.finished,
        lambda chunks: write_chunks(model, chunks, seconds.append),
        seconds,
    )


def write_chunks(
    model: EmbeddingModel,
    chunks: Iterable[Chunk],
    on_read: Callable[[float], object] = lambda seconds: None,
) -> Iterator[Path]:
    """Embeds the images of chunks, reading ahead, and yields each chunk once it is written."""
    begun, errors = deque[Chunk](), deque[DataError]()

    def groups() -> Iterator[Sequence[Item]]:
        for chunk in chunks:
            begun.append(chunk)
            yield chunk[1]

    for rows in model.embed_each(groups(), errors.append, on_read):
        directory, items = begun.popleft()
        bad = np.isnan(rows[:, 0])
        usable = [item for item, failed in zip(items, bad, strict=True) if not failed]
        reasons = {
            as_text(item.name): str(errors.popleft()).removeprefix(f"{item.name}: ")
            for item, failed in zip(items, bad, strict=True)
            if failed
        }
        table.write(
            directory, rows[~bad], None, [as_text(item.name) for item in usable],
            identity=model.identity, metadata={"sha256": [item.sha256 for item in usable]},
            unusable=reasons,
        )  # fmt: skip
        yield directory


def embed_files(
    engine: Engine,
    files: Sequence[str],
    output: Path,
    *,
    strict: bool = False,
    quiet: bool = False,
    say: Callable[[str], object] = print,
) -> Table:
    """The table of image files in a directory, after embedding those whose content has no row yet.

    Rows of other images are dropped; unusable ones are tried again.

    Args:
      output: the directory of the table.
      strict: whether unusable images, which are left out, are an error at the end.
      quiet: shows no progress.
      say: gets messages.

    Raises:
      DataError: an image is unusable, with `strict`; or all are.
    """
    with table.growing(output, engine.identity) as grown:
        _embed_missing(engine, files, grown, quiet=quiet, say=say)
        warn = partial(print, file=sys.stderr)
        leave_out(list(grown.unusable.items()), len(files), warn, strict=strict)
        before, result = grown.before, grown.finish(files, finished=engine.finished)
        if before and before is not result:
            say(_changes(before, result))
        return result


def _embed_missing(
    engine: Engine,
    files: Sequence[str],
    grown: Growing,
    *,
    quiet: bool,
    say: Callable[[str], object],
) -> None:
    missing = grown.missing(files)
    done = len(files) - len(missing)
    if not missing:
        say("all images have been embedded already")
    elif done:
        say(f"continuing: {done:,} of {counted(len(files), 'image')} are embedded already")
    items = [Item(name, Path(name).absolute()) for name in missing]
    parts = [items[i : i + ROWS] for i in range(0, len(items), ROWS)]
    with Console(quiet=quiet) as console:
        console.start_progress("images", len(files), done)
        began, images, seconds = time.monotonic(), 0, 0.0
        for chunk in engine.embed([(grown.new_chunk(), part) for part in parts]):
            part = grown.append(chunk)
            done += len(part.ids) + len(part.unusable)
            # Other threads append meanwhile.
            durations = [engine.seconds.pop() for _ in range(len(engine.seconds))]
            images, seconds = images + len(durations), seconds + sum(durations)
            if done < len(files):
                rate = images / (time.monotonic() - began)
                speed = f", a core decodes {images / seconds:.0f}" if seconds else ""
                console.update_progress(done, f"{rate:.0f} images/s{speed}" if images else "")


def _changes(before: Table, after: Table) -> str:
    """The numbers of images that are new, changed, dropped and kept."""
    tables = before, after
    old, new = (dict(zip(each.ids, each.metadata["sha256"], strict=True)) for each in tables)
    both = old.keys() & new.keys()
    changed = sum(old[name] != new[name] for name in both)
    counts = {
        "new": len(new.keys() - both),
        "changed": changed,
        "dropped": len(old.keys() - both),
        "kept": len(both) - changed,
    }
    return "images: " + ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
