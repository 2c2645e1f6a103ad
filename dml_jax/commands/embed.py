"""Embeds new, unlabelled images:

    dml-jax embed --model=runs/folder_baseline photos/ [--output=embeddings] [--query=x.jpg]
    dml-jax embed --model=lite0 photos/    without training, also by converted weights (--model=weights/dinov2_vits14)

Writes embeddings.npy (float32, rows of unit length), ids.json and manifest.json; with --query also neighbors.png, a
figure of the images nearest to the query.

Meanwhile the rows are kept in numbered files in <output>.shards, so the same command continues where it was killed;
once it is complete, the command does nothing. All devices and cores of the machine are used. Several machines divide
the work if each runs the command with --processes=8 --process=0 (… 7) and they share the directories; each may be
stopped and started at any time, and the last to finish writes the output. The result is the same bit for bit if the
machines have the same processors or accelerators, and as many; otherwise it is the same up to rounding.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dml_jax.commands import cli, model_options
from dml_jax.data.prepare.sources import IMAGE_SUFFIXES, is_image, walk
from dml_jax.errors import ConfigError, DataError, printable
from dml_jax.files import expand_path

if TYPE_CHECKING:
    from dml_jax.export.embedding_shards import Shards
    from dml_jax.inference.model import Model

NEIGHBORS = 8  # shown for a query
FIGURE = "neighbors.png"


def image_files(paths: list[str], output: Path | None = None) -> list[str]:
    """Image files among `paths`, and those below directories among them as `walk` finds them.

    The figure in `output` is left out, because a second `embed .` would take it for a new image.

    Raises:
      DataError: a path does not exist, or there is no image file.
    """
    files: list[str] = []
    figure = output and os.path.realpath(output / FIGURE)
    for name in paths:
        path = expand_path("IMAGE", name)
        if path.is_dir():
            files += [
                str(file.path)
                for name, file in walk(path)
                if is_image(name) and not (file.path.name == FIGURE and os.path.realpath(file.path) == figure)
            ]
        elif path.is_file():
            files.append(str(path))
        else:
            raise DataError(f"{name}: there is no such file or directory")
    if not files:
        raise DataError(f"{', '.join(paths)}: no image files (suffixes: {', '.join(IMAGE_SUFFIXES)})")
    return files


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    flags.add_argument("paths", nargs="*", metavar="IMAGE|DIRECTORY", help="images to embed")
    model_options.add(flags)
    flags.add_argument("--output", default="embeddings", help="directory to write (default: embeddings)")
    flags.add_argument("--skip_bad", action="store_true", help="leave out unusable images instead of stopping")
    flags.add_argument("--query", help="image whose nearest neighbours are listed and drawn")
    flags.add_argument("--quiet", action="store_true", help="print messages but no progress")
    flags.add_argument("--processes", type=int, default=1, help="number of processes that divide the images")
    flags.add_argument("--process", type=int, default=0, help="index of this process, from 0")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line, embeds the images and writes the arrays.

    Raises:
      UserError: invalid input.
    """
    options = parser().parse_args(arguments)
    model_options.check(options)
    if not options.paths:
        raise ConfigError("IMAGE: missing; give image files or directories")
    cli.check_process(options.processes, options.process)
    output = expand_path("--output", options.output)
    files = image_files(options.paths, output)
    query = expand_path("--query", options.query) if options.query else None
    if query and not query.is_file():
        raise DataError(f"--query={options.query}: there is no such file; give one image")

    import dml_jax
    from dml_jax import config as configs
    from dml_jax.commands import runtime
    from dml_jax.export import embedding_files, embedding_shards

    embedding_files.check_replaceable(output)
    runtime.enable_compilation_cache()
    runtime.keep_freed_memory()
    model = dml_jax.load(options.model, options.checkpoint, trust_code=options.trust_code)
    query_image = model.read(query) if query else None  # first, because it may turn out not to be an image
    facts = {"config_hash": configs.digest(model.config), "model_sha256": model.fingerprint}
    plan = embedding_shards.plan(files, facts)
    shards = embedding_shards.Shards(output, plan)
    exported = finished = embedding_shards.finished(output, plan)
    if not exported:
        embed_missing(model, files, shards, options)
        to_come = len(shards.missing())  # counted first, because the process that merges them removes them afterwards
        with shards.merging() as whole:
            if whole:
                names = usable_images(files, shards, skip_bad=options.skip_bad)
                exported = embedding_files.write(
                    output, shards.usable_rows(), None, names,
                    config_hash=facts["config_hash"], step=model.step, finished=model.finished, plan=plan,
                )  # fmt: skip
        exported = exported or embedding_shards.finished(output, plan)
        if not exported:
            if to_come:
                print(f"the output will be written by the last process; files to come: {to_come}")
            else:
                print("another process is writing the output")
            return
    left_out = count_left_out(files, exported.ids, output, skip_bad=options.skip_bad)
    if finished:
        shards.remove()  # if the process that merged them was killed
        print("all images have been embedded already")
    if left_out:
        print(f"left out: {left_out} of {len(files)} images")
    dimensions = exported.embeddings.shape[1]
    print(f"{len(exported.ids)} embeddings with {dimensions} dimensions: {printable(str(output))}")
    if query and query_image is not None:
        from dml_jax.analysis import figures
        from dml_jax.evaluation import neighbors

        count = min(NEIGHBORS, len(exported.ids))
        distances, indices = neighbors.search(model.embed([query]), exported.embeddings, count)
        found = [exported.ids[int(i)] for i in indices[0]]
        figures.plot_retrieved_images(output / FIGURE, [[query_image, *map(model.read, found)]])
        for distance, name in zip(distances[0].tolist(), found, strict=True):
            print(f"cosine {1 - distance:.4f}  {printable(name)}")
        print(f"figure: {printable(str(output / FIGURE))}")


def embed_missing(model: "Model", files: Sequence[str], shards: "Shards", options: Namespace) -> None:
    """Embeds this process's share of the images, except those that an earlier call has written.

    Raises:
      DataError: an image cannot be used; with `options.skip_bad`, it is listed on stderr instead.
    """
    from dml_jax.console import Console

    share = range(options.process, shards.count, options.processes)
    missing = shards.missing(options.process, options.processes)
    if len(missing) < len(share):
        print(
            f"continuing: {len(share) - len(missing)} of {len(share)} files are in {printable(str(shards.directory))}"
        )

    def list_bad(error: DataError) -> None:
        print(f"left out: {printable(str(error))}", file=sys.stderr)

    groups = ([files[i] for i in shards.images(number)] for number in missing)
    with Console(quiet=options.quiet) as console:
        console.start_progress("files of embeddings", len(share), len(share) - len(missing))
        parts = model.embed_each(groups, list_bad if options.skip_bad else None)
        for left, number, rows in zip(reversed(range(len(missing))), missing, parts, strict=True):
            shards.write(number, rows)
            if left:
                console.update_progress(len(share) - left)


def usable_images(files: Sequence[str], shards: "Shards", *, skip_bad: bool) -> list[str]:
    """The images that have embeddings.

    Raises:
      DataError: there is none; or some have none, and they may not be left out.
    """
    bad = shards.unusable()
    names = [file for i, file in enumerate(files) if i not in bad]
    count_left_out(files, names, shards.directory, skip_bad=skip_bad)
    if not names:
        shards.remove()
        raise DataError(f"none of {len(files)} images can be used; the reasons are listed above")
    return names


def count_left_out(files: Sequence[str], names: Sequence[str], where: Path, *, skip_bad: bool) -> int:
    """The number of images that are not among `names`, those with embeddings in `where`.

    Raises:
      DataError: there are some, and they may not be left out.
    """
    usable = set(names)
    left_out = [file for file in files if file not in usable]
    if left_out and not skip_bad:
        raise DataError(f"{left_out[0]}: was left out with --skip_bad before; give --skip_bad again, or delete {where}")
    return len(left_out)
