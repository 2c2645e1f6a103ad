"""Embeds new, unlabelled images with the model of a finished run:

    python -m dml_jax.embed --workdir=runs/folder_baseline photos/ [--output=embeddings] [--query=x.jpg]
    python -m dml_jax.embed --backbone=weights/dinov2_vits14 photos/    without training, by converted weights

Writes embeddings.npy (float32, rows of unit length), ids.json and manifest.json; with --query also neighbors.png, a
figure of the images nearest to the query.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dml_jax import cli
from dml_jax.data.prepare.source_files import IMAGE_SUFFIXES, walk
from dml_jax.errors import ConfigError, DataError, printable
from dml_jax.files import expand_path, utf8_path

if TYPE_CHECKING:
    from dml_jax.trained_model import Model

NEIGHBORS = 8  # shown for a query


def image_files(paths: list[str]) -> list[Path]:
    """Image files among `paths`, and those below directories among them as `walk` finds them.

    Raises:
      DataError: a path does not exist, or there is no image file.
    """
    files: list[Path] = []
    for name in paths:
        path = expand_path("IMAGE", name)
        if path.is_dir():
            files += [file.path for name, file in walk(path) if name.lower().endswith(IMAGE_SUFFIXES)]
        elif path.is_file():
            files.append(path)
        else:
            raise DataError(f"{name}: there is no such file or directory")
    if not files:
        raise DataError(f"{', '.join(paths)}: no image files (suffixes: {', '.join(IMAGE_SUFFIXES)})")
    return files


def usable(model: "Model", files: Sequence[Path]) -> list[Path]:
    """The images that the model can embed; the others are listed on stderr with the reason.

    Raises:
      DataError: there is none.
    """
    kept = []
    for file in files:
        try:
            model.read(file)
            kept.append(file)
        except DataError as error:
            print(f"left out: {printable(str(error))}", file=sys.stderr)
    if not kept:
        raise DataError(f"none of {len(files)} images can be used; the reasons are listed above")
    return kept


def execute(arguments: list[str]) -> None:
    """Reads the command line, embeds the images and writes the arrays.

    Raises:
      UserError: invalid input.
    """
    flags = cli.Parser(__doc__)
    flags.add_argument("paths", nargs="*", metavar="IMAGE|DIRECTORY", help="images to embed")
    flags.add_argument("--workdir", help="work directory of the run whose model is used")
    flags.add_argument("--backbone", dest="workdir", metavar="DIRECTORY", help="or converted weights, used as they are")
    flags.add_argument("--checkpoint", default="reported", help="reported (default), latest, best or a step")
    flags.add_argument("--output", default="embeddings", help="directory to write (default: embeddings)")
    flags.add_argument("--skip_bad", action="store_true", help="leave out unusable images instead of stopping")
    flags.add_argument("--query", help="image whose nearest neighbours are listed and drawn")
    options = flags.parse_args(arguments)
    if not options.workdir:
        raise ConfigError(
            "--workdir: missing; give the work directory of a run, or --backbone=DIRECTORY of converted weights"
        )
    if not options.paths:
        raise ConfigError("IMAGE: missing; give image files or directories")
    files = image_files(options.paths)
    query = expand_path("--query", options.query) if options.query else None
    if query and not query.is_file():
        raise DataError(f"--query={options.query}: there is no such file; give one image")

    import numpy as np

    import dml_jax
    from dml_jax import config as configs
    from dml_jax.evaluation import neighbors
    from dml_jax.export import embedding_files

    output = expand_path("--output", options.output)
    embedding_files.check_replaceable(output)
    model = dml_jax.load(utf8_path("--workdir", options.workdir), options.checkpoint)
    # Before the other images are embedded, because the query may turn out not to be an image.
    query_image, query_embedding = (model.read(query), model.embed([query])) if query else (None, None)
    files = usable(model, files) if options.skip_bad else files
    embeddings = model.embed(files)
    names = [str(file) for file in files]
    embedding_files.write(output, embeddings, None, names, config_hash=configs.digest(model.config), step=model.step)
    print(f"{len(files)} embeddings with {embeddings.shape[1]} dimensions: {printable(str(output))}")
    if query_image is not None and query_embedding is not None:
        from dml_jax.analysis import figures

        distances, indices = neighbors.search(query_embedding, embeddings, min(NEIGHBORS, len(files)))
        row = [query_image, *(model.read(files[int(i)]) for i in indices[0])]
        figures.plot_retrieved_images(output / "neighbors.png", [row])
        for distance, index in zip(np.asarray(distances[0]), indices[0], strict=True):
            print(f"{distance:.4f}  {printable(str(files[int(index)]))}")
        print(f"figure: {printable(str(output / 'neighbors.png'))}")


def main() -> int:
    """Runs the command on `sys.argv`; returns its exit code."""
    return cli.exit_code(lambda: execute(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
