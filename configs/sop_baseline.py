"""The losses of the literature on Stanford Online Products: ResNet-50, 512-d or 128-d.

                                         R@1    R@10   R@100  R@1000     NMI
    normalised softmax, 512-d           78.2    90.6    96.2            91.0
    Proxy-Anchor, 512-d                 80.0    91.7    96.6
    ProxyNCA++, 512-d                   80.7
    margin, 128-d                       72.7    86.2    93.8            90.7
    multi-similarity, 128-d            76.49   89.33   95.66
    contrastive with memory, 128-d      80.6

The first rows are quoted from Seidenschwarz et al. (ICML 2021), Tables 1, 2 and 6; margin is from Wu et al. (ICCV
2017), multi-similarity from Kan et al. (NeurIPS 2022), Table 5, both trained by other recipes than the
one used here; the memory's row is from Wang et al. (CVPR 2020) as quoted by others. Results of a fixed schedule were
not published.

    python -m dml_jax.main --config=configs/sop_baseline.py                        clean protocol, normalised softmax
    python -m dml_jax.main --config=configs/sop_baseline.py:proxy_anchor           another loss
    python -m dml_jax.main --config=configs/sop_baseline.py:proxy_anchor-paper     the authors' protocol

Cost: not published. For the variants and the sources of their settings see configs/recipes/baseline.py.
"""

from ml_collections import ConfigDict

from configs.recipes import baseline
from configs.recipes.published import variants

REPORTED = baseline.every(
    {
        "normalized_softmax": (78.2, 90.6, 96.2, None, 91.0),
        "proxy_anchor": (80.0, 91.7, 96.6),
        "proxy_nca_pp": (80.7,),
        "margin": (72.7, 86.2, 93.8, None, 90.7),
        "multi_similarity": (76.49, 89.33, 95.66),
        "contrastive-memory": (80.6,),
    }
)
VARIANTS = variants(REPORTED)


def get_config(variant: str = "") -> ConfigDict:
    return baseline.recipe("sop", variant, REPORTED)
