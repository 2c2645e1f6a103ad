"""Browses images by their neighbours in a browser (`pip install starlette uvicorn
python-multipart`):

    dml-jax explore --model=runs/birds [--split=test] [--port=8001]
    dml-jax explore --model=lite0 --data=photos/

Open the address that it prints: choose an image to see those nearest to it, or drop a photograph
in. Only this machine can reach it. Shows the data of the run (--config.data.path=… if they have
moved) or, with --data, any labelled images: a folder with one subfolder per class, or the test
split of a prepared data set.
"""

from __future__ import annotations

import signal
import sys

from dml_jax.commands import analyse, cli, jax_setup, serve
from dml_jax.errors import counted

HOST = "127.0.0.1"


def execute(arguments: list[str]) -> None:
    """Reads the command line; serves until SIGTERM or Ctrl-C."""
    flags = cli.Parser(__doc__)
    cli.add_model(flags)
    flags.add_argument(
        "--data", metavar="DIRECTORY", help="labelled images: class folders or a prepared data set"
    )
    flags.add_argument("--split", choices=analyse.SPLITS, default="test", help="default: test")
    flags.add_argument("--port", type=int, default=8001, help="default 8001; 0 for any free one")
    options, overrides = analyse.read(flags, arguments)
    from dml_jax import analyses

    config = None
    if not options.data:
        trusted = options.trust_code
        config, _ = analyses.run_config(options.model, overrides, trust_code=trusted)
    cli.check_installed("explore", "uvicorn", serve.PACKAGES)
    from dml_jax.data import formats
    from dml_jax.data.split import Split, hold_out, with_gallery
    from dml_jax.serving import explorer, http_service

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with serve.listen(HOST, options.port) as listener:
        if config is None:
            model, splits = jax_setup.load_on_images(options)
            title = f"{options.data} by {options.model}"
        else:
            model, splits = jax_setup.load(options), formats.load(config.data)
            if config.data.validation_share:
                splits["train"], splits["validation"] = hold_out(
                    splits["train"], config.data.validation_share
                )
            cli.require(
                options.split in splits,
                f"--split={options.split}: the run has none; give {' or '.join(splits)}",
            )
            title = f"{config.name}, {options.split} images"

        def part(split: Split) -> explorer.Part:
            print(f"embedding {counted(len(split.labels), 'image')}", flush=True)
            return explorer.Part(split, model.embed_split(split))

        shown = explorer.Explorer(title, *map(part, with_gallery(splits, options.split).values()))
        service = http_service.Service(model, shown.answers)
        service.compile()
        print(f"http://{HOST}:{listener.getsockname()[1]}/", flush=True)
        http_service.server(service, shown.routes()).run([listener])
