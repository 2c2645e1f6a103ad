"""The data sets, one module each: `config.data.name` is the name of its module; there is no other registry.

A data set that users convert with `dml-jax prepare` defines `RECIPE: prepare.sources.Recipe`, whose `find` maps the
files of the original distribution to images, labels and splits; `cub.py` is a short example. Any other defines

    load(data: config.Data) -> dict[str, Split]

as `digits.py`, which raises DataError or ConfigError if `data.path` is not what it expects. The splits are "train" and
"test", whose classes are disjoint, and optionally "validation", which shares no class with "test". If queries are
retrieved from a separate gallery, it is both `splits["test"].gallery` and the split "gallery".

Its test is a miniature of the original files in `tests/data/layouts.py` and an entry in `LAYOUTS` of
`tests/data/test_datasets.py`. The table in `docs/topics/data.md` gets a row.
"""

from dataclasses import replace

from dml_jax import config as configs
from dml_jax.config import Data
from dml_jax.data import sessions, store
from dml_jax.data.split import Split, together
from dml_jax.files import is_url


def load(data: Data) -> dict[str, Split]:
    """Loads the splits of the data set `data.name`; of a bucket, from a copy on this machine."""
    if is_url(data.path):
        data = replace(data, path=str(store.staged(data.path)))
    module = configs.module("data", data.name)
    found = dict(module.load(data)) if hasattr(module, "load") else store.load(data, data.name, module.RECIPE)
    if data.session:
        found = {name: sessions.added(split, data.session) for name, split in found.items()}
    if data.split == "all":
        found["train"] = together([split for name, split in found.items() if name != "gallery"])
    return found
