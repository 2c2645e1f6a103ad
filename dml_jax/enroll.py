"""Enrolls new classes with the model of a finished run, without training, and classifies images:

    python -m dml_jax.enroll --workdir=runs/birds --index=birds.npz gallery/            # class folders, as for training
    python -m dml_jax.enroll --workdir=runs/birds --index=birds.npz --classify photos/

The first creates the index or adds to an existing one. The second prints one tab-separated line per image: class or
"unknown", cosine to the nearest enrolled image, the image, the nearest enrolled image.
"""

import sys
from pathlib import Path

from dml_jax import cli
from dml_jax.data.datasets import folder
from dml_jax.data.prepare.source_files import Options, walk
from dml_jax.embed import image_files, usable
from dml_jax.errors import ConfigError, DataError, printable
from dml_jax.files import expand_path


def class_folders(paths: list[str]) -> dict[str, list[Path]]:
    """Image files by class, with the classes that training finds in each directory (`datasets.folder`).

    Raises:
      DataError: a path is not a directory, it holds no class folders or images outside of them, or two have a class of
        the same name.
    """
    classes: dict[str, list[Path]] = {}
    directory_of: dict[str, str] = {}
    for name in paths:
        path = expand_path("DIRECTORY", name)
        if not path.is_dir():
            raise DataError(f"{name}: there is no such directory; give a directory with one folder of images per class")
        try:
            entries = folder.find(dict(sorted(walk(path))), Options())
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
        if not entries:
            raise DataError(f"{name}: holds no class folders with images")
        for entry in entries:
            if directory_of.setdefault(entry.class_name, name) != name:
                raise DataError(
                    f"{name}: {directory_of[entry.class_name]} also has a class {entry.class_name}; rename one"
                )
            classes.setdefault(entry.class_name, []).append(entry.file.path)
    return classes


def execute(arguments: list[str]) -> None:
    """Reads the command line; enrolls classes or classifies images.

    Raises:
      UserError: invalid input.
    """
    flags = cli.Parser(__doc__)
    flags.add_argument("paths", nargs="*", metavar="DIRECTORY|IMAGE", help="directories of class folders, or images")
    flags.add_argument("--workdir", help="work directory of the run whose model is used")
    flags.add_argument("--checkpoint", default="reported", help="reported (default), latest, best or a step")
    flags.add_argument("--index", help=".npz file with the enrolled classes")
    flags.add_argument("--classify", action="store_true", help="classify images instead of enrolling classes")
    flags.add_argument(
        "--threshold", type=float, help="cosine below which an image is unknown (default: that of equal error rates)"
    )
    flags.add_argument("--skip_bad", action="store_true", help="leave out unusable images instead of stopping")
    options = flags.parse_args(arguments)
    for key in ("workdir", "index"):
        if not getattr(options, key):
            raise ConfigError(f"--{key}: missing; e.g. --workdir=runs/birds --index=birds.npz")
    if not options.paths:
        raise ConfigError("DIRECTORY|IMAGE: missing; give directories of class folders or, with --classify, images")
    if options.threshold is not None and not options.classify:
        raise ConfigError("--threshold: needs --classify; give that too")
    path = expand_path("--index", options.index)
    if path.suffix != ".npz":
        raise ConfigError(f"--index={options.index}: must end in .npz")
    if not path.parent.is_dir():
        raise ConfigError(f"--index={options.index}: there is no directory {path.parent}")
    if options.classify and not path.is_file():
        raise ConfigError(f"--index={options.index}: there is no such file; enroll classes first")
    files = image_files(options.paths) if options.classify else []
    classes = {} if options.classify else class_folders(options.paths)

    import dml_jax

    model = dml_jax.load(expand_path("--workdir", options.workdir), options.checkpoint)
    if options.skip_bad:
        kept = set(usable(model, files or [file for images in classes.values() for file in images]))
        files = [file for file in files if file in kept]
        classes = {name: chosen for name, images in classes.items() if (chosen := [f for f in images if f in kept])}
    if options.classify:
        index = model.index(path)
        for name, cosine, nearest, file in zip(*index.nearest(files, threshold=options.threshold), files, strict=True):
            print("\t".join(map(printable, (name, f"{cosine:.4f}", str(file), index.images[nearest]))))
        return
    if path.exists():
        index = model.index(path)
        index.add(classes)
    else:
        index = model.enroll(classes)
    index.save(path)
    added, total = sum(len(files) for files in classes.values()), len(index.images)
    print(
        f"{path}: enrolled {added} images of {len(classes)} classes; now {total} images of {len(index.classes)} classes"
    )


def main() -> int:
    """Runs the command on `sys.argv`; returns its exit code."""
    return cli.exit_code(lambda: execute(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
