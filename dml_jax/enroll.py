"""Enrolls new classes with the model of a finished run, without training, and tells them apart:

    python -m dml_jax.enroll --workdir=runs/birds --index=birds.npz gallery/            # class folders
    python -m dml_jax.enroll --workdir=runs/birds --index=birds.npz --classify photos/  # or "unknown"

The first adds to the index where it is there already. The second prints one line an image, tabs between: class, cosine
to the nearest enrolled image, the image, the nearest one.
"""

import sys
from pathlib import Path

from dml_jax import cli
from dml_jax.embed import images
from dml_jax.errors import ConfigError, DataError
from dml_jax.files import expand_path


def galleries(paths: list[str]) -> dict[str, list[Path]]:
    """Images by class: each folder in the directories named is a class, called as the folder.

    Raises:
      DataError: a path that is no directory, no class folders, one without images, or two of one name.
    """
    found: dict[str, Path] = {}
    for name in paths:
        path = expand_path("DIRECTORY", name)
        if not path.is_dir():
            raise DataError(f"{name}: there is no such directory; give one that holds a folder for each class")
        folders = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        if not folders:
            raise DataError(f"{name}: holds no folders; give a directory with a folder of images for each class")
        for folder in folders:
            if folder.name in found:
                raise DataError(
                    f"{folder}: there is a class {folder.name} in {found[folder.name].parent} too; rename one"
                )
            found[folder.name] = folder
    return {name: images([str(folder)]) for name, folder in found.items()}


def execute(arguments: list[str]) -> None:
    """Reads the command line; enrolls, or classifies.

    Raises:
      UserError: what the user can mend.
    """
    flags = cli.Parser(__doc__)
    flags.add_argument("paths", nargs="*", metavar="DIRECTORY|IMAGE", help="class folders; images to classify")
    flags.add_argument("--workdir", help="of the run whose model is used")
    flags.add_argument("--checkpoint", default="reported", help="reported (default), latest, best or a step")
    flags.add_argument("--index", help=".npz file of the enrolled classes")
    flags.add_argument("--classify", action="store_true", help="tell which of them images show")
    flags.add_argument("--threshold", type=float, help="cosine below which it is none (default: as in results.json)")
    options = flags.parse_args(arguments)
    for key in ("workdir", "index"):
        if not getattr(options, key):
            raise ConfigError(f"--{key}: missing; e.g. --workdir=runs/birds --index=birds.npz")
    if not options.paths:
        raise ConfigError("no paths given; name a directory of class folders, or with --classify images")
    if options.threshold is not None and not options.classify:
        raise ConfigError("--threshold: is for --classify")
    place = expand_path("--index", options.index)
    if place.suffix != ".npz":
        raise ConfigError(f"--index={options.index}: an index is a .npz file; give it that ending")
    if not place.parent.is_dir():
        raise ConfigError(f"--index={options.index}: there is no directory {place.parent}")
    if options.classify and not place.is_file():
        raise ConfigError(f"--index={options.index}: there is no such file; enroll classes first")
    files = images(options.paths) if options.classify else []
    classes = {} if options.classify else galleries(options.paths)

    import dml_jax

    model = dml_jax.load(expand_path("--workdir", options.workdir), options.checkpoint)
    if options.classify:
        index = model.index(place)
        for name, cosine, nearest, file in zip(*index.nearest(files, threshold=options.threshold), files, strict=True):
            print(f"{name}\t{cosine:.4f}\t{file}\t{index.images[nearest]}")
        return
    if place.exists():
        index = model.index(place)
        index.add(classes)
    else:
        index = model.enroll(classes)
    index.save(place)
    added, total = sum(len(files) for files in classes.values()), len(index.images)
    print(f"{place}: {added} images of {len(classes)} classes enrolled; {total} of {len(index.classes)} in all")


def main() -> int:
    """Runs the command on `sys.argv`; returns its exit code."""
    return cli.status(lambda: execute(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
