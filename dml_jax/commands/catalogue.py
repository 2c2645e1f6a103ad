"""Finds out what a folder of images holds, also without labels:

    dml-jax catalogue photos/ [--model=lite0] [--output=catalogue]

Writes <output>/catalogue.html, a page with groups of near-duplicates, clusters of similar images
and, if the images are in class folders, those whose neighbours say another class, the surest first;
and <output>/catalogue.csv with a row per image. The embeddings, by lite0 unless another model is
given, are kept in <output>, so that the same command later embeds only new images.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from dml_jax.commands import cli, jax_setup
from dml_jax.errors import DataError
from dml_jax.files import as_text, expand_path


def execute(arguments: list[str]) -> None:
    """Reads the command line; embeds the images and writes the page and the table."""
    flags = cli.Parser(__doc__)
    flags.add_argument("folder", metavar="FOLDER", help="images, perhaps in class folders")
    cli.add_model(flags, required=False, versions=True, runtime=True)
    flags.set_defaults(model="lite0")
    text = "directory to write (default: catalogue)"
    flags.add_argument("--output", default="catalogue", help=text)
    flags.add_argument("--quiet", action="store_true", help="print messages but no progress")
    options = flags.read_plain(arguments)
    from dml_jax import table
    from dml_jax.analysis import catalogue
    from dml_jax.data import formats
    from dml_jax.inference import bulk_embedding, graphs, inputs

    output, folder = expand_path("--output", options.output), options.folder
    cli.require(expand_path("FOLDER", folder).is_dir(), f"{folder}: must be a directory of images")
    warn = partial(print, file=sys.stderr)
    files = inputs.image_files([folder], warn)
    table.check_replaceable(arrays := output / "embeddings")
    label_of: dict[Path, str] = {}
    try:
        classes = formats.class_folders([folder])
        if len(classes) > 1:
            pairs = ((path, name) for name in classes for path in classes[name])
            label_of = {path.resolve(): name for path, name in pairs if isinstance(path, Path)}
    except DataError as problem:
        warn(f"without labels: {problem}")
    model = jax_setup.load(options)
    engine = bulk_embedding.local_engine(model)
    exported = bulk_embedding.embed_files(engine, files, arrays, quiet=options.quiet)
    if len(exported.ids) < 2:
        raise DataError(f"{folder}: holds one image; give another folder")
    file_of = {as_text(name): name for name in files}
    images = [file_of[name] for name in exported.ids]
    labels = [label_of.get(Path(name).resolve(), "") for name in images]
    found = catalogue.catalogue(images, exported.embeddings, labels)
    catalogue.write(found, output, f"{folder} by {options.model}")
    print(f"written: {output / 'catalogue.html'} and {output / 'catalogue.csv'}")
    graphs.make(model)
