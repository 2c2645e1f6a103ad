"""Browses images by their neighbours in a browser (`pip install starlette uvicorn python-multipart`):

    dml-jax explore --model=runs/birds [--split=test] [--port=8001]
    dml-jax explore --model=lite0 --data=photos/

Open the address that it prints: choose an image to see those nearest to it, or drop a photograph in. Only this machine
can reach it. Shows the data of the run (--config.data.path=… if they have moved) or, with --data, any labelled images:
a folder with one subfolder per class, or the test split of a prepared data set.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import dml_jax
from dml_jax.commands import analyse, cli, model_options, runtime, serve
from dml_jax.errors import ConfigError, counted
from dml_jax.files import expand_path

if TYPE_CHECKING or not cli.asks_for_help():  # slow imports, which the parser does not need
    import numpy as np

    from dml_jax.config import Config
    from dml_jax.data import formats
    from dml_jax.data.split import Split, digest, hold_out
    from dml_jax.export import embedding_files
    from dml_jax.inference import labelled
    from dml_jax.inference.model import Model
    from dml_jax.train.records import workdir


HOST = "127.0.0.1"


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    model_options.add(flags)
    flags.add_argument("--data", metavar="DIRECTORY", help="labelled images: class folders or a prepared data set")
    flags.add_argument("--split", choices=analyse.SPLITS, default="test", help="default: test")
    flags.add_argument("--port", type=int, default=8001, help="default 8001; 0 for any free one")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line; serves until SIGTERM or Ctrl-C."""
    options, overrides = parser().read(arguments)
    model_options.check(options)
    if options.data:
        cli.refuse(f"--config.{key}: is not used with --data; remove it" for key in overrides)
        cli.require(options.split == "test", f"--split={options.split}: is not used with --data; remove it")
    config, directory = (None, None) if options.data else analyse.run_config(options.model, options, overrides)
    cli.check_installed("explore", "uvicorn", serve.PACKAGES)
    from dml_jax.serving import explorer, http_service

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with serve.listen(HOST, options.port) as listener:
        runtime.enable_compilation_cache()
        model = dml_jax.load(options.model, options.checkpoint, trust_code=options.trust_code)
        stored, hashes = None, ("", "")
        if config is None or directory is None:
            split = labelled.load(expand_path("--data", options.data), model.config.data)
            title = f"{options.data} by {options.model}"
        else:
            splits = all_splits(config, options.split)
            split, title, stored = splits[options.split], f"{config.name}, {options.split} images", directory
            hashes = digest(splits), str(workdir.read_config(directory)["data_hash"])
            if hashes[0] != hashes[1]:
                print(f"warning: the data are not those that the run in {directory} was trained on", file=sys.stderr)

        def part(split: Split, name: str) -> explorer.Part:
            return explorer.Part(split, embeddings(model, split, stored and stored / "embeddings" / name, *hashes))

        gallery = part(split.gallery, "gallery") if split.gallery else None
        shown = explorer.Explorer(title, part(split, options.split), gallery)
        service = http_service.Service(model, shown.answers)
        service.compile()
        print(f"http://{HOST}:{listener.getsockname()[1]}/", flush=True)
        http_service.server(service, shown.routes()).run([listener])


def all_splits(config: Config, name: str) -> dict[str, Split]:
    """The data of a run, by split; raises ConfigError if it has no split `name`."""
    splits = formats.load(config.data)
    if config.data.validation_share:
        splits["train"], splits["validation"] = hold_out(splits["train"], config.data.validation_share)
    if name not in splits:
        raise ConfigError(f"--split={name}: the run has none; give {' or '.join(splits)}")
    return splits


def embeddings(model: Model, split: Split, exported: Path | None, data_hash: str, trained: str) -> np.ndarray:
    """Embeddings of a split, float32 [N, D]: the run's exported ones, if they are of this model and these data.

    `data_hash` is the hash of the data as they are, `trained` of the data that the run was trained on and exported,
    unless the export says otherwise.
    """
    if exported and (exported / "manifest.json").exists():
        stored = embedding_files.read(exported)
        same_data = stored.manifest.get("data_hash", trained) == data_hash and stored.ids == list(split.ids)
        if stored.manifest.get("checkpoint_step") == model.step and same_data:
            return np.asarray(stored.embeddings)
    print(f"embedding {counted(len(split.labels), 'image')}", flush=True)
    return model.embed_split(split)
