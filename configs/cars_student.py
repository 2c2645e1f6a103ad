"""A student of MPN on Cars196: ResNet-50, 512-d (Seidenschwarz et al., ICML 2021)."""

from configs.student.recipe import on

PAPER_PROTOCOL, VARIANTS, get_config = on("cars")
