"""Losses from the literature on Cars196: ResNet-50, 512-d or 128-d.

    python -m dml_jax.main --config=configs/cars_baseline.py:proxy_anchor
    python -m dml_jax.main --config=configs/cars_baseline.py:proxy_anchor-lite0

`proxy_anchor-lite0` is in no paper (`configs/recipes/cars_lite0.py`) and takes hours on two cores.
"""

from configs.recipes import cars_lite0
from configs.recipes.baseline import on

PAPER_PROTOCOL, VARIANTS, get_config = on("cars", {"proxy_anchor-lite0": cars_lite0.OVERRIDES})
