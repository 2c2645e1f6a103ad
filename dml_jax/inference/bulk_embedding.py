"""Embedding many images into Parquet files and arrays; an interrupted call is continued by the
next."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dml_jax.console import Console
from dml_jax.errors import DataError, counted, printable
from dml_jax.export import embedding_files
from dml_jax.export.embedding_files import Exported
from dml_jax.inference import embedding_shards, unit_embedding
from dml_jax.inference.embedding_model import EmbeddingModel
from dml_jax.inference.embedding_shards import Shards, Source, Summary
from dml_jax.inference.inputs import Unit
from dml_jax.inference.unit_embedding import Embed

ARRAY_BYTES = 2**32  # of embeddings, above which they are written as Parquet only
SHOWN = 10  # unusable images that are listed


class Engine(NamedTuple):
    """What embeds units of images: a model of this process, or the actors of a Ray cluster."""

    source: Source
    embed: Embed
    seconds: list[float]  # filled by `embed`: time to read each image; empty on a cluster


def local_engine(model: EmbeddingModel) -> Engine:
    """Embeds by a model in this process."""
    seconds = list[float]()
    embed = partial(unit_embedding.embed, model, on_read=seconds.append)
    return Engine(embedding_shards.source(model), embed, seconds)


def embed_units(
    engine: Engine,
    units: Sequence[Unit],
    directory: Path | str,
    arrays: Path | None,
    *,
    skip_bad: bool = False,
    quiet: bool = False,
    say: Callable[[str], object] = print,
) -> tuple[Summary, Exported | None]:
    """Embeds the images that earlier calls have not embedded, drops those that are no longer given,
    and tries unusable ones again.

    Args:
      directory: receives one Parquet file for each unit, see `embedding_shards`; or a URL.
      arrays: receives the usable embeddings as arrays unless they have more than `ARRAY_BYTES`, see
        `embedding_files`.
      skip_bad: leaves unusable images out of the arrays; otherwise they are an error at the end.
      quiet: shows no progress.
      say: gets messages.

    Returns:
      The numbers of images, and the arrays or None.

    Raises:
      DataError: an image is unusable, unless `skip_bad`; or all are.
    """
    plan = embedding_shards.plan(units, engine.source)
    with embedding_shards.opened(directory, plan) as written:
        _embed_missing(engine, units, written, quiet=quiet, say=say)
        if written.changed:
            say(written.finish())
        summary = _checked(written, arrays, skip_bad=skip_bad, say=say)
        if not arrays or 4 * summary.dimensions * summary.usable > ARRAY_BYTES:
            return summary, None
        return summary, _export(arrays, written, engine.source, summary.usable)


def _embed_missing(
    engine: Engine,
    units: Sequence[Unit],
    written: Shards,
    *,
    quiet: bool,
    say: Callable[[str], object],
) -> None:
    missing = written.missing()
    done = written.count - len(missing)
    if not missing:
        say("all images have been embedded already")
    elif written.tried_again:
        say(f"trying {counted(written.tried_again, 'unusable image')} again")
    elif written.changed:
        say("the images have changed; embeddings of unchanged files are kept")
    elif done:
        place = printable(str(written.directory))
        say(f"continuing: {done} of {written.count} files are in {place}")
    with Console(quiet=quiet) as console:
        console.start_progress("files of embeddings", written.count, done)
        began, images, seconds = time.monotonic(), 0, 0.0
        for _ in engine.embed((written.file(number), units[number]) for number in missing):
            # Other threads append meanwhile.
            taken = [engine.seconds.pop() for _ in range(len(engine.seconds))]
            done, images, seconds = done + 1, images + len(taken), seconds + sum(taken)
            if done < written.count:
                rate = images / (time.monotonic() - began)
                text = (
                    f"{rate:.0f} images/s, a core decodes {images / seconds:.0f}" if images else ""
                )
                console.update_progress(done, text)


def _checked(
    written: Shards, arrays: Path | None, *, skip_bad: bool, say: Callable[[str], object]
) -> Summary:
    """Counts the images and prints the first errors; DataError if none is usable, or they may not
    be left out."""
    summary = written.summary(SHOWN)
    for error in summary.errors:
        print(f"{'left out' if skip_bad else 'unusable'}: {printable(error)}", file=sys.stderr)
    count = f"{summary.unusable:,} of {counted(summary.images, 'image')}"
    if not summary.usable or (summary.unusable and not skip_bad):
        remedy = f"; give --skip_bad to leave such images out{f' of {arrays}' if arrays else ''}"
        raise DataError(
            f"{count} cannot be used; all errors are in {written.directory}"
            f"{'' if skip_bad else remedy}"
        )
    if summary.unusable:
        say(f"left out: {count}")
    return summary


def _export(output: Path, written: Shards, model: Source, usable: int) -> Exported:
    """Writes the usable embeddings as arrays, unless they are there already and undamaged."""
    with suppress(DataError):
        exported = embedding_files.read(output)
        if exported.seal.about.get("plan") == written.plan and len(exported.ids) == usable:
            return exported
    return embedding_files.write(
        output,
        written.usable_rows(),
        None,
        written.usable_names(),
        finished=model.finished,
        plan=written.plan,
    )
