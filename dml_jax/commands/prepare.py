"""Prepares a data set from the archives or folders that its authors distribute:

    dml-jax prepare --name=cub --download
    dml-jax prepare --name=cub --source=CUB_200_2011.tgz --output=data/cub
    dml-jax prepare --name=folder --source=photos/ --output=data/photos --short_side=256

Decodes every image, names those that cannot be used and leaves them out, and lists duplicates in
duplicates.csv. --source can be repeated for data sets that consist of several archives.
"""

from __future__ import annotations

from dml_jax import files
from dml_jax.commands import cli
from dml_jax.errors import ConfigError

SWITCHES = {
    "download": "cub, sop, omniglot: from their owners; prints the terms",
    "pixels": "store uncompressed pixels: fast to read, needs much space",
    "strict": "stop if images cannot be used, instead of leaving them out",
    "subset": "accept a part of a data set with a known size",
    "quiet": "no progress bars",
}


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__, epilog=cli.LARGE)
    add = flags.add_argument
    text = "cub, cars, sop, inshop, omniglot, folder or csv"
    add("--name", metavar="DATA_SET", help=text)
    text = "folder, .csv file or official archive"
    add("--source", metavar="PATH", action="append", default=[], help=text)
    text = "new data.path (default with --download: data/NAME)"
    add("--output", metavar="DIRECTORY", help=text)
    text = "shorter side of larger images"
    add("--short_side", type=int, default=0, metavar="PIXELS", help=text)
    text = "share of the classes for test, if the source gives no splits (default: 0.5)"
    add("--test_share", type=float, default=0.5, metavar="FRACTION", help=text)
    cli.add_layout(flags, sessions=("folder",))
    for name, text in SWITCHES.items():
        flags.add_argument(f"--{name}", action="store_true", help=text)
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line and prepares a data set."""
    options = parser().read_plain(arguments)
    from dml_jax.config import import_code, plugin_module
    from dml_jax.console import Console
    from dml_jax.data import preparation
    from dml_jax.data.sources import Recipe

    problem = "--source: is not used with --download; give one of them"
    cli.require(not (options.download and options.source), problem)
    if options.download and options.name:
        options.output = options.output or f"data/{options.name}"
    for key in ("name", *(() if options.download else ("source",)), "output"):
        example = "--name=folder --source=photos/ --output=data/photos, or --name=cub --download"
        cli.require(getattr(options, key), f"--{key}: missing; e.g. {example}")
    share, side = options.test_share, options.short_side
    cli.require(0 < share < 1, f"--test_share={share}: must be between 0 and 1, e.g. 0.5")
    cli.require(side >= 0, f"--short_side={side}: must be a number of pixels, or 0")
    layout = cli.layout(options)._replace(test_share=share)
    import_code({"data": {"name": options.name}})
    recipe: Recipe | None = getattr(plugin_module("data", options.name, "--name"), "RECIPE", None)
    if recipe is None:
        remedy = f"use it directly with --config.data.name={options.name}"
        raise ConfigError(f"--name={options.name}: needs no preparation; {remedy}")
    paths = tuple(files.expand_path("--source", source) for source in options.source)
    request = preparation.Request(
        name=options.name,
        sources=preparation.archives(options.name, recipe) if options.download else paths,
        output=files.expand_path("--output", options.output),
        options=layout,
        short_side=options.short_side,
        pixels=options.pixels,
        strict=options.strict,
        subset=options.subset,
        download=options.download,
    )
    with Console(quiet=options.quiet) as console:
        about = preparation.prepare(request, recipe, console)
    for line in preparation.summary(about):
        console.print(line)
    console.print(
        f"written: {options.output}; use with --config.data.name={options.name} "
        f"--config.data.path={options.output}"
    )
