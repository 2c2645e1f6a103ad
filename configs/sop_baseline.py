"""The losses of the literature on Stanford Online Products: ResNet-50, 512-d or 128-d.

                                                         R@1    R@10   R@100  R@1000     NMI
    normalised softmax, 512-d, Table 1                  78.2    90.6    96.2            91.0
    Proxy-Anchor, 512-d, Table 1                        80.0    91.7    96.6
    ProxyNCA++, 512-d, 256 x 256 pixels, Table 7        80.7
    margin, 128-d, Table 1                              72.7    86.2    93.8            90.7
    multi-similarity, 128-d, 227 x 227 pixels (CRT)    76.49   89.33   95.66
    contrastive with memory, 128-d                      80.6

The tables are those of Seidenschwarz et al. (ICML 2021), which quote the authors' results; multi-similarity is from Kan
et al. (NeurIPS 2022), Table 5, the memory's row from Wang et al. (CVPR 2020) as quoted by others. Margin and
multi-similarity were trained by other recipes than the one used here. ProxyNCA++ is trained on 256 x 256 pixels, as by
its authors; on 227 x 227 pixels Seidenschwarz et al. obtain R@1 79.8 with their code (Table 1). Results of a fixed
schedule were not published.

Normalised softmax: batch 75, random crops of 224 pixels, SGD, 30 epochs after 1 of warm-up.

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
