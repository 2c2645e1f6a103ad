"""The data sets, one module each: `config.data.name` is the name of its module, there is no other registry.

A module must define

    load(data: config.Data) -> dict[str, Split]

with the splits "train" and "test", whose classes are disjoint, and optionally "validation", which shares no class with
"test". If queries are retrieved from a separate gallery, it is both `splits["test"].gallery` and the split "gallery".
`load` raises DataError or ConfigError if `data.path` is not what it expects.

A data set that users download and convert with `dml-jax prepare` also defines

    RECIPE: prepare.sources.Recipe

whose `find` maps the files of the original distribution to images, labels and splits (see `prepare/sources.py`),
and implements `load` as `return store.load(data, "<name>")`. `cub.py` is a short example with a recipe,
`digits.py` one without.

So a new data set is one new file. Two files change for its tests: `tests/data/layouts.py` gets a miniature of the
original files and `LAYOUTS` in `tests/data/test_datasets.py` an entry. The table in `docs/topics/data.md` gets a row.
"""

from dataclasses import replace

from dml_jax import config as configs
from dml_jax.config import Data
from dml_jax.data import store
from dml_jax.data.split import Split
from dml_jax.files import is_url


def load(data: Data) -> dict[str, Split]:
    """Loads the splits of the data set `data.name`; of a bucket, from a copy on this machine."""
    if is_url(data.path):
        data = replace(data, path=str(store.staged(data.path)))
    return configs.module("data", data.name).load(data)
