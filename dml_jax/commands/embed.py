"""Embeds new, unlabelled images:

    dml-jax embed --model=runs/folder_baseline photos/ [--output=embeddings] [--query=x.jpg]
    dml-jax embed --model=lite0 photos/    without training, also by converted weights (--model=weights/dinov2_vits14)

An IMAGE is also a Parquet file with a column `image`, a tar or zip archive of images such as a
shard of WebDataset, or a directory of them without loose images; these may also be in a bucket,
gs://… or s3://…

Writes <output>.parquet, a directory of Parquet files with the columns id, embedding and error: an
unusable image is a row with its error. The same command continues where it was killed; once it is
complete, it embeds nothing.

Unless they are larger than 4 GiB or in a bucket (--output=gs://… or s3://…), the embeddings are
also written to <output>: embeddings.npy (float32, rows of unit length), ids.json and manifest.json.
--query lists the images nearest to another one.

All devices and cores of the machine are used, on a CPU by onnxruntime if the graph of the model is
in the cache, where --runtime=onnxruntime puts it; with --engine=ray, those of all machines of a Ray
cluster, which must see the same files.
"""  # noqa: E501

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml_jax.commands import cli, jax_setup
from dml_jax.errors import DataError, counted, printable
from dml_jax.files import BUCKETS, expand_path

if TYPE_CHECKING:
    from dml_jax.export.embedding_files import Exported
    from dml_jax.inference.embedding_shards import Embed, Facts, Parts, Summary
    from dml_jax.inference.inputs import Unit

ARRAY_BYTES = 2**32  # of embeddings, above which they are written as Parquet only
SHOWN = 10  # unusable images that are listed
NEIGHBORS = 8  # shown for a query


def image_files(paths: list[str]) -> list[str]:
    """Image files among `paths`, and those below directories among them; says on stderr what is
    left out.

    Raises DataError if a path does not exist, or there is no image file.
    """
    return images_and_shards(paths, None)[0]


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__)
    flags.add_argument(
        "paths",
        nargs="+",
        metavar="IMAGE|DIRECTORY",
        help="images to embed, Parquet files or archives",
    )
    cli.add_model(flags, versions=True, runtime=True)
    flags.add_argument(
        "--output", default="embeddings", help="directory to write (default: embeddings)"
    )
    flags.add_argument(
        "--skip_bad",
        action="store_true",
        help="leave unusable images out of <output>, and do not fail",
    )
    flags.add_argument("--query", help="image: list its nearest neighbours")
    flags.add_argument("--quiet", action="store_true", help="print messages but no progress")
    cli.add_engine(flags)
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line, embeds the images and writes the arrays."""
    options = parser().read_plain(arguments)
    cli.check_engine(options)
    cli.require(
        options.engine == "local" or not options.runtime, "--runtime: not with --engine=ray"
    )
    from dml_jax.export import embedding_files
    from dml_jax.inference import embedding_shards, inputs

    where: Path | str
    if options.output.startswith(BUCKETS):
        local = not options.query and options.engine == "local"
        cli.require(local, f"--output={options.output}: --query and --engine=ray need a directory")
        output, where = None, f"{options.output.rstrip('/')}.parquet"
    else:
        output = expand_path("--output", options.output)
        where = output.resolve().with_name(f"{output.resolve().name}.parquet")
    files, shards = images_and_shards(options.paths, where)
    query = expand_path("--query", options.query) if options.query else None
    if query:
        cli.require(
            query.is_file(), f"--query={options.query}: there is no such file; give one image"
        )
        loose_only = not shards and options.engine == "local"
        cli.require(
            loose_only,
            "--query: needs image files, neither Parquet files nor archives, and no --engine=ray",
        )

    if output:
        embedding_files.check_replaceable(output)
    units = inputs.units(files, shards)
    engine: AbstractContextManager[tuple[Facts, Embed]]
    query_row, read = None, list[float]()  # seconds of each image
    if options.engine == "ray":
        from dml_jax.inference import ray_engine

        engine = ray_engine.start(
            options.address, options.model, options.checkpoint, trust_code=options.trust_code,
            flip=options.flip, scales=options.scales,
        )  # fmt: skip
    else:
        model = jax_setup.load(options)
        if model.runtime == "jax":
            jax_setup.keep_freed_memory()
        query_row = (
            model.embed([query]) if query else None
        )  # first, because it may turn out not to be an image
        engine = nullcontext(
            (
                embedding_shards.facts(model),
                partial(embedding_shards.embed, model, on_read=read.append),
            )
        )
    with engine as (facts, embed):
        plan = embedding_shards.plan(units, facts)
        with embedding_shards.opened(where, plan) as written:
            embed_missing(embed, units, written, read, quiet=options.quiet)
            summary = check_usable(written, output, skip_bad=options.skip_bad)
            exported = None
            if (
                output
                and 4 * summary.dimensions * (summary.images - summary.unusable) <= ARRAY_BYTES
            ):
                exported = export(output, written, plan, facts, summary.images - summary.unusable)
    rows = counted(summary.images - summary.unusable, "embedding")
    print(
        f"{rows} with {summary.dimensions} dimensions: "
        f"{printable(str(output if exported else where))}"
    )
    if query_row is not None and exported:
        from dml_jax.evaluation import neighbors

        count = min(NEIGHBORS, len(exported.ids))
        distances, indices = neighbors.search(query_row, exported.embeddings, count)
        for distance, row in zip(distances[0].tolist(), indices[0].tolist(), strict=True):
            print(f"cosine {1 - distance:.4f}  {printable(exported.ids[row])}")


def images_and_shards(paths: list[str], written: Path | str | None) -> tuple[list[str], list[str]]:
    """Image files among `paths`, and Parquet files and archives, also those in directories without
    loose images.

    Says on stderr what is left out. Files in `written`, the Parquet files of the output, are left
    out; without it, only image files count.
    """
    from dml_jax.data.files import IMAGE_SUFFIXES
    from dml_jax.data.prepare.understand import shown
    from dml_jax.inference import inputs

    files, shards, said = list[str](), list[str](), list[str]()
    for name in paths:
        if written is not None and name.startswith(BUCKETS):
            shards += inputs.bucket_shards(name, written)
        elif (path := expand_path("IMAGE", name)).is_dir():
            images, packed, doubts = inputs.of_directory(path, written)
            files, shards = files + images, shards + packed
            said += [f"{name}: {line}" for line in doubts]
            if not images and not packed:
                suffixes = f"suffixes: {', '.join(IMAGE_SUFFIXES)}"
                raise DataError("; ".join([f"{name}: no image files ({suffixes})", *doubts]))
        elif path.is_file():
            (shards if written is not None and inputs.is_shard(name) else files).append(str(path))
        else:
            raise DataError(f"{name}: there is no such file or directory")
    for line in shown(said):
        print(printable(line), file=sys.stderr)
    return files, list(dict.fromkeys(shards))


def embed_missing(
    embed: Embed, units: Sequence[Unit], written: Parts, read: list[float], *, quiet: bool
) -> None:
    """Embeds the images that earlier calls have not written; `embed` adds the seconds that each
    took to read."""
    from dml_jax.console import Console

    missing = written.missing()
    done = written.count - len(missing)
    if not missing:
        print("all images have been embedded already")
    elif done:
        print(
            f"continuing: {done} of {written.count} files are in "
            f"{printable(str(written.directory))}"
        )
    with Console(quiet=quiet) as console:
        console.start_progress("files of embeddings", written.count, done)
        began, images, seconds = time.monotonic(), 0, 0.0
        for _ in embed((written.file(number), units[number]) for number in missing):
            taken = [read.pop() for _ in range(len(read))]  # other threads append meanwhile
            done, images, seconds = done + 1, images + len(taken), seconds + sum(taken)
            if done < written.count:
                rate = images / (time.monotonic() - began)
                text = (
                    f"{rate:.0f} images/s, a core decodes {images / seconds:.0f}" if images else ""
                )
                console.update_progress(done, text)


def check_usable(written: Parts, output: Path | None, *, skip_bad: bool) -> Summary:
    """Counts the images and lists the first unusable ones; DataError if none is usable, or they may
    not be left out."""
    summary = written.summary(SHOWN)
    for error in summary.errors:
        print(f"{'left out' if skip_bad else 'unusable'}: {printable(error)}", file=sys.stderr)
    total = counted(summary.images, "image")
    if summary.unusable == summary.images or (summary.unusable and not skip_bad):
        raise DataError(
            f"{summary.unusable:,} of {total} cannot be used; all errors are in {written.directory}"
            + (
                ""
                if skip_bad
                else "; give --skip_bad to leave such images "
                f"out{f' of {output}' if output else ''}"
            )
        )
    if summary.unusable:
        print(f"left out: {summary.unusable:,} of {total}")
    return summary


def export(
    output: Path, written: Parts, plan: dict[str, Any], facts: Facts, usable: int
) -> Exported:
    """Writes the usable embeddings as arrays, unless they are there already, as many and
    undamaged."""
    from dml_jax.export import embedding_files

    with suppress(DataError):
        exported = embedding_files.read(output)
        if exported.manifest.get("plan") == plan and len(exported.ids) == usable:
            return exported
    return embedding_files.write(
        output,
        written.usable_rows(),
        None,
        written.usable_names(),
        config_hash=facts.config_hash,
        step=facts.step,
        finished=facts.finished,
        plan=plan,
    )
