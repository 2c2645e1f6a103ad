"""Prepares a data set once, from the archives or folders its owners ship:

    python -m dml_jax.prepare --name=cub --source=CUB_200_2011.tgz --output=data/cub
    python -m dml_jax.prepare --name=folder --source=photos/ --output=data/photos --short_side=256

Every image is decoded; what cannot be used is listed, all at once. The same command again continues an interrupted
preparation. --source may be given several times, for data sets that come in several archives.
"""

import os
import sys

from dml_jax import cli, files
from dml_jax import config as configs
from dml_jax.data import prepared
from dml_jax.data.prepare.sources import Options, Recipe
from dml_jax.errors import ConfigError


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    flags.add_argument("--name", metavar="DATA_SET", help="cub, cars, sop, inshop, omniglot, folder or csv")
    flags.add_argument("--source", metavar="PATH", action="append", default=[], help="archive, folder or .csv file")
    flags.add_argument("--output", metavar="DIRECTORY", help="where to, then data.path of a configuration")
    flags.add_argument("--short_side", type=int, default=0, metavar="PIXELS", help="shrink to, for speed; 0: never")
    flags.add_argument("--pixels", action="store_true", help="store uncompressed pixels: fastest, takes a lot of room")
    flags.add_argument("--skip_bad", action="store_true", help="leave out what cannot be used instead of stopping")
    flags.add_argument("--subset", action="store_true", help="accept a part of a data set with known counts")
    flags.add_argument("--test_share", type=float, default=0.5, help="of the classes, where the data set has no splits")
    flags.add_argument(
        "--splits", default="auto", help="folders, classes or auto: whether folders train and test decide"
    )
    flags.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="that decode images")
    flags.add_argument("--quiet", action="store_true", help="messages, no progress")
    flags.add_argument(
        "--verify",
        metavar="DIRECTORY",
        help="only compare the files of a prepared data set with their hashes",
    )
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line and prepares or verifies.

    Raises:
      UserError: what the user can mend.
    """
    options, overrides = parser().read(arguments)
    if overrides:
        raise ConfigError(f"--config.{min(overrides)}: dml_jax.prepare has no configuration")
    from dml_jax.console import Console

    console = Console(quiet=options.quiet)
    console.rich.file = sys.stdout  # this one, also while tensorflow_datasets' own messages are kept off it
    if options.verify:
        prepared.verify(files.expand_path("--verify", options.verify))
        console.say(f"{options.verify} is as it was written")
        return
    for key in ("name", "source", "output"):
        if not getattr(options, key):
            raise ConfigError(f"--{key}: missing; e.g. --name=folder --source=photos/ --output=data/photos")
    if options.splits not in ("auto", "folders", "classes"):
        raise ConfigError(f"--splits={options.splits}: must be auto, folders or classes")
    if not 0 < options.test_share < 1:
        raise ConfigError(f"--test_share={options.test_share}: must lie between 0 and 1")
    if options.short_side < 0:
        raise ConfigError(f"--short_side={options.short_side}: must be at least 0, which keeps the images' sizes")
    if options.threads < 1:
        raise ConfigError(f"--threads={options.threads}: must be at least 1")
    recipe: Recipe | None = getattr(configs.module("data.datasets", options.name, "--name"), "RECIPE", None)
    if recipe is None:
        raise ConfigError(f"--name={options.name}: needs no preparation")
    from dml_jax.data.prepare import steps  # imports tensorflow_datasets, which takes a second

    request = steps.Request(
        name=options.name,
        sources=tuple(files.expand_path("--source", source) for source in options.source),
        output=files.expand_path("--output", options.output),
        options=Options(options.test_share, options.splits),
        short_side=options.short_side,
        pixels=options.pixels,
        skip_bad=options.skip_bad,
        subset=options.subset,
        threads=options.threads,
    )
    with console:
        content = steps.prepare(request, recipe, console)
    for line in steps.summary(content):
        console.say(line)
    console.say(f"written: {options.output}; use it with --config.data.path={options.output}")


def main() -> int:
    """Runs the command on `sys.argv`; returns its exit code."""
    return cli.status(lambda: execute(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
