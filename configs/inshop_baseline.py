"""The losses of the literature on In-Shop Clothes: ResNet-50, 512-d or 128-d.

                                         R@1    R@10    R@20    R@30    R@40
    Proxy-Anchor, 512-d                 92.1    98.1    98.7            99.2
    ProxyNCA++, 512-d                   90.4    98.1    98.8            99.2
    multi-similarity, 128-d            90.11   97.52   98.27
    contrastive with memory, 128-d      91.3

The first rows are quoted from Seidenschwarz et al. (ICML 2021), Tables 1, 2 and 6; multi-similarity is from Kan
et al. (NeurIPS 2022), Table 5, trained by another recipe than the one used here; the memory's row is from Wang et al.
(CVPR 2020) as quoted by others. Results of a fixed schedule were not published.

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
