"""Browses images by their neighbours in a browser (extra "serve"):

    dml-jax explore --model=runs/birds [--split=test] [--port=8001]
    dml-jax explore --model=lite0 --data=photos/ [--index=birds.npz]

Open the address that it prints: choose an image to see those nearest to it, or drop a photograph
in. Only this machine can reach it. Shows the data of the run (--config.data.path=… if they have
moved) or, with --data, any labelled images: a folder with one subfolder per class, or the test
split of a prepared data set. With an index of `dml-jax enroll`, the page also has the three most
probable enrolled classes of an image, with their probabilities.
"""

from __future__ import annotations

import signal
import sys

from dml_jax.commands import cli, jax_setup
from dml_jax.files import expand_path

HOST = "127.0.0.1"


def execute(arguments: list[str]) -> None:
    """Reads the command line; serves until SIGTERM or Ctrl-C."""
    flags = cli.Parser(__doc__)
    cli.add_model(flags)
    text = "labelled images: class folders or a prepared data set"
    flags.add_argument("--data", metavar="DIRECTORY", help=text)
    flags.add_argument("--split", choices=cli.SPLIT_NAMES, default="test", help="default: test")
    flags.add_argument("--index", help=".npz file with enrolled classes")
    flags.add_argument("--port", type=int, default=8001, help="default 8001; 0 for any free one")
    options, overrides = cli.read_with_data(flags, arguments)
    from dml_jax import analyses

    index = expand_path("--index", options.index) if options.index else None
    problem = f"--index={options.index}: there is no such file; enroll classes first"
    cli.require(index is None or index.is_file(), problem)
    config = None
    if not options.data:
        trust_code = options.trust_code
        config, _ = analyses.run_config(options.model, overrides, trust_code=trust_code)
    cli.check_installed("explore", "httptools", cli.SERVER_PACKAGES)
    from dml_jax.data import formats
    from dml_jax.data.split import hold_out
    from dml_jax.serving import explorer, http_service

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with http_service.listen(HOST, options.port) as listener:
        if config is None:
            model, splits = jax_setup.load_on_images(options)
            title = f"{options.data} by {options.model}"
        else:
            model, splits = jax_setup.load(options), formats.load(config.data)
            if share := config.data.validation_share:
                splits["train"], splits["validation"] = hold_out(splits["train"], share)
            problem = f"--split={options.split}: the run has none; give {' or '.join(splits)}"
            cli.require(options.split in splits, problem)
            title = f"{config.name}, {options.split} images"
        classes = http_service.EnrolledClasses(model, index, {}) if index else None
        shown = explorer.explorer_of(model, splits, options.split, title, classes)
        service = http_service.Service(model, shown.answers)
        http_service.serve(service, listener, shown.routes())
