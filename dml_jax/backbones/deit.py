"""Training data-efficient image transformers & distillation through attention (Touvron et al., ICML 2021).

DeiT-S is the ViT-S/16 of `vit.py`; the distilled variant has a second token and a second classifier. 21,665,664
parameters without the classifier, 21,666,432 distilled.
"""

from dml_jax.backbones import vit
from dml_jax.backbones.contract import Backbone
from dml_jax.options.backbones.deit import Config, deit_base, deit_small, deit_small_distilled

__all__ = ["Config", "build", "deit_base", "deit_small", "deit_small_distilled"]


def build(config: Config) -> Backbone:
    """A DeiT as a backbone; see `vit.build`."""
    size = "base" if config.width == 768 else "small"
    source = f"hf://timm/deit_{size}_{'distilled_' if config.distilled else ''}patch16_224.fb_in1k"
    return vit.build(config, source)
