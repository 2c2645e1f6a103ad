"""Sorts a folder of images, labelled or not, and helps to correct it:

    dml-jax catalogue photos/ [--model=lite0] [--output=catalogue]
    dml-jax catalogue photos/ --serve
    dml-jax catalogue photos/ --apply=catalogue/changes.csv [--reverse]

Writes <output>/catalogue.html, a page with suspicious labels (of images in class folders),
near-duplicates, clusters, blurred and odd images; and <output>/catalogue.csv with a row per image.
The embeddings are kept in <output>, so that the same command later embeds only new images.

With --serve, the page has buttons and is shown to browsers on this machine: move an image to
another class, merge two classes, delete images, or keep them as they are. Each click adds a row to
<output>/changes.csv and can be undone; no file is touched. --apply then moves the files to the
folders of their classes, and deleted ones to the hidden folder .trash beside these. It overwrites
nothing and can be repeated after an interruption; --reverse moves all files back.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dml_jax.commands import cli, jax_setup, serve
from dml_jax.errors import DataError, counted
from dml_jax.files import as_text, expand_path

if TYPE_CHECKING:
    import argparse

    from dml_jax.analysis.catalogue import Catalogue


def execute(arguments: list[str]) -> None:
    """Reads the command line; applies changes, or embeds the images and shows them."""
    flags = cli.Parser(__doc__, epilog=cli.LARGE)
    flags.add_argument("folder", metavar="FOLDER", help="images, perhaps in class folders")
    cli.add_model(flags, required=False, versions=True, runtime=True)
    flags.set_defaults(model="lite0")
    text = "directory to write (default: catalogue)"
    flags.add_argument("--output", default="catalogue", help=text)
    flags.add_argument("--quiet", action="store_true", help="print messages but no progress")
    text = "show the page with buttons to a browser on this machine"
    flags.add_argument("--serve", action="store_true", help=text)
    flags.add_argument("--port", type=int, default=8000, help="default 8000; 0 for any free one")
    flags.add_argument("--apply", metavar="CHANGES", help="move files as this table says")
    flags.add_argument("--reverse", action="store_true", help="with --apply: move them back")
    options = flags.read_plain(arguments)
    folder = expand_path("FOLDER", options.folder)
    cli.require(folder.is_dir(), f"{options.folder}: must be a directory of images")
    problem = f"--reverse: needs --apply={options.output}/changes.csv"
    cli.require(options.apply or not options.reverse, problem)
    if options.apply:
        from dml_jax.analysis import changes

        file = expand_path("--apply", options.apply)
        problem = f"--apply={options.apply}: there is no such file; --serve writes"
        cli.require(file.is_file(), f"{problem} {options.output}/changes.csv at the first click")
        moved = changes.apply(folder, file, reverse=options.reverse)
        remedy = "" if options.reverse else f"; --apply={options.apply} --reverse moves them back"
        print(f"moved {counted(moved, 'file')}{remedy}")
    elif options.serve:
        cli.check_installed("--serve", "httptools", cli.SERVER_PACKAGES)
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        with serve.bind("127.0.0.1", options.port) as listener:
            found, file = _catalogue(options, folder)
            from dml_jax.serving.catalogue_service import CatalogueService
            from dml_jax.serving.http_service import Server

            service = CatalogueService(found, _title(options), file)
            server = Server(service, ["localhost", "127.0.0.1"])
            listener.listen(server.config.backlog)
            address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            print(f"{address} (Ctrl-C ends it; then --apply={file} moves the files)", flush=True)
            server.run([listener])
    else:
        _catalogue(options, folder)


def _title(options: argparse.Namespace) -> str:
    return f"{options.folder} (model: {options.model})"


def _catalogue(options: argparse.Namespace, folder: Path) -> tuple[Catalogue, Path]:
    """Embeds the images and writes the page and the table; the catalogue and its changes' file."""
    from dml_jax import table
    from dml_jax.analysis import catalogue, catalogue_page, changes, examined_images
    from dml_jax.data import formats, sessions
    from dml_jax.inference import bulk_embedding, graphs, inputs

    output = expand_path("--output", options.output)
    warn = partial(print, file=sys.stderr)
    left_out = list[str]()
    files = inputs.image_files([options.folder], left_out.append)
    table.check_replaceable(arrays := output / "embeddings")
    label_of: dict[Path, str] = {}
    try:
        classes = formats.class_folders([options.folder])
        if len(classes) > 1:
            pairs = ((path, name) for name in classes for path in classes[name])
            label_of = {path.resolve(): name for path, name in pairs if isinstance(path, Path)}
    except DataError as problem:
        left_out.append(f"without labels: {problem}")
    for line in left_out if not label_of else ():  # those of class folders have been printed
        warn(line)
    model = jax_setup.load(options)
    engine = bulk_embedding.local_engine(model)
    exported = bulk_embedding.embed_files(engine, files, arrays, quiet=options.quiet)
    if len(exported.ids) < 2:
        raise DataError(f"{options.folder}: contains one image; give a folder with more")
    file_of = {as_text(name): name for name in files}
    images = [file_of[name] for name in exported.ids]
    names = [f"./{os.path.relpath(name, folder)}" for name in images]
    digests, days = exported.metadata["sha256"], sessions.find_sessions("", images, images)
    examined = examined_images.examine(folder, names, digests, exported.embeddings, days)
    log = changes.read(file := output / "changes.csv")
    if count := len(changes.places(log)):
        done = changes.applied(folder, log)
        cli.require(done in (0, count), f"{file}: has been applied in part; repeat --apply={file}")
        if done:
            earlier = output / f"changes-{len(list(output.glob('changes-*.csv'))) + 1}.csv"
            cli.require(not earlier.exists(), f"{earlier}: exists; rename it")
            file.rename(earlier)
            print(f"{file}: has been applied, and is now {earlier}")
            log = []
    labels = [label_of.get(Path(name).resolve(), "") for name in images]
    found = catalogue.Catalogue(examined, labels, log)
    found.write(output / "catalogue.csv")
    catalogue_page.write(found, _title(options), output / "catalogue.html")
    print(f"written: {output / 'catalogue.html'} and {output / 'catalogue.csv'}")
    graphs.make(model)
    return found, file
