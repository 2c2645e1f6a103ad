"""Embeds new, unlabelled images:

    dml-jax embed --model=runs/folder_baseline photos/ [--output=embeddings] [--query=x.jpg]
    dml-jax embed --model=lite0 photos/    without training; also --model=weights/dinov2_vits14

Writes <output>: embeddings.npy (float32, rows of unit length), ids.json, metadata.json (the SHA-256
of each image's file) and manifest.json. Until all images are embedded, the rows are in chunks in
<output>.chunks: repeat a killed command to continue it. When images change, it embeds the new
contents only. --query lists the images nearest to this one.

The command uses all devices and cores of the machine or, with --engine=ray, of a Ray cluster whose
machines see the same files. On a CPU, it uses onnxruntime where that is installed, once the first
command has written the model's graph to the cache.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from dml_jax.commands import cli, jax_setup
from dml_jax.errors import counted
from dml_jax.files import expand_path

if TYPE_CHECKING:
    from dml_jax.inference.bulk_embedding import Engine

NEIGHBORS = 8  # shown for a query


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__, epilog=cli.LARGE)
    flags.add_argument("paths", nargs="+", metavar="IMAGE|DIRECTORY", help="images to embed")
    cli.add_model(flags, versions=True, runtime=True)
    text = "directory to write (default: embeddings)"
    flags.add_argument("--output", default="embeddings", help=text)
    text = "fail at the end if images cannot be used, instead of leaving them out"
    flags.add_argument("--strict", action="store_true", help=text)
    flags.add_argument("--query", help="image: list its nearest neighbours")
    flags.add_argument("--quiet", action="store_true", help="print messages but no progress")
    cli.add_engine(flags)
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line, embeds the images and writes the table."""
    options = parser().read_plain(arguments)
    cli.check_engine(options)
    local = options.engine == "local"
    cli.require(local or not options.runtime, "--runtime: not with --engine=ray")
    from dml_jax import table
    from dml_jax.inference import bulk_embedding, graphs, inputs

    output = expand_path("--output", options.output)
    files = inputs.image_files(options.paths, partial(print, file=sys.stderr))
    query = expand_path("--query", options.query) if options.query else None
    if query:
        problem = f"--query={options.query}: there is no such file; give one image"
        cli.require(query.is_file(), problem)
        cli.require(local, "--query: not with --engine=ray")
    table.check_replaceable(output)
    engine: AbstractContextManager[Engine]
    query_row = None
    if local:
        model = jax_setup.load(options)
        if model.runtime == "jax":
            jax_setup.keep_freed_memory()
        query_row = model.embed([query]) if query else None  # first: it may not be an image
        engine = nullcontext(bulk_embedding.local_engine(model))
    else:
        from dml_jax.inference import ray_engine

        versions = {"flip": options.flip, "scales": options.scales}
        model_options = {"trust_code": options.trust_code, **versions}
        engine = ray_engine.start(
            options.address, options.model, options.checkpoint, **model_options
        )
    with engine as opened:
        how = {"strict": options.strict, "quiet": options.quiet}
        exported = bulk_embedding.embed_files(opened, files, output, **how)
    rows, dimensions = counted(len(exported.ids), "embedding"), exported.embeddings.shape[1]
    print(f"{rows} with {dimensions} dimensions: {output}")
    if query_row is not None:
        from dml_jax.evaluation import neighbors

        count = min(NEIGHBORS, len(exported.ids))
        distances, indices = neighbors.search(query_row, exported.embeddings, count)
        for distance, row in zip(distances[0].tolist(), indices[0].tolist(), strict=True):
            print(f"cosine {1 - distance:.4f}  {exported.ids[row]}")
    if local:
        graphs.make(model)
