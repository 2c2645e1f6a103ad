"""The losses of the literature on In-Shop Clothes: ResNet-50, 512-d or 128-d.

                                                         R@1    R@10    R@20    R@30    R@40
    Proxy-Anchor, 512-d, Table 2                        92.1    98.1    98.7            99.2
    ProxyNCA++, 512-d, Tables 2 and 7                   90.4    98.1    98.8            99.2
    multi-similarity, 128-d, 227 x 227 pixels (CRT)    90.11   97.52   98.27
    contrastive with memory, 128-d                      91.3

The tables are those of Seidenschwarz et al. (ICML 2021). They give the same R@1 of ProxyNCA++, which is trained here on
256 x 256 pixels as by its authors, for 227 x 227 (Table 6) and for 256 x 256 pixels (Table 7). Multi-similarity is from
Kan et al. (NeurIPS 2022), Table 5, trained by another recipe than the one used here; the memory's row is from Wang et
al. (CVPR 2020) as quoted by others. Results of a fixed schedule were not published.

Normalised softmax: batch 75, random crops of 224 pixels, SGD, 30 epochs after 1 of warm-up.

    python -m dml_jax.main --config=configs/inshop_baseline.py                        clean protocol, normalised softmax
    python -m dml_jax.main --config=configs/inshop_baseline.py:proxy_anchor           another loss
    python -m dml_jax.main --config=configs/inshop_baseline.py:proxy_anchor-paper     the authors' protocol

Cost: not published. For the variants and the sources of their settings see configs/recipes/baseline.py.
"""

from ml_collections import ConfigDict

from configs.recipes import baseline
from configs.recipes.published import variants

REPORTED = baseline.every(
    {
        "normalized_softmax": (),
        "proxy_anchor": (92.1, 98.1, 98.7, None, 99.2),
        "proxy_nca_pp": (90.4, 98.1, 98.8, None, 99.2),
        "multi_similarity": (90.11, 97.52, 98.27),
        "contrastive-memory": (91.3,),
    }
)
VARIANTS = variants(REPORTED)


def get_config(variant: str = "") -> ConfigDict:
    return baseline.recipe("inshop", variant, REPORTED)
