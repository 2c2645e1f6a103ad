"""The losses of the literature on CUB-200-2011: ResNet-50, 512-d or 128-d.

                                                         R@1     R@2     R@4     R@8     NMI
    normalised softmax, 512-d, Table 1                  61.3    73.9    83.5    90.0    69.7
    Proxy-Anchor, 512-d, Table 1                        69.7    80.0    87.0    92.4
    ProxyNCA++, 512-d, 256 x 256 pixels, Table 7        69.0                            73.9
    margin, 128-d, Table 1                              63.6    74.4    83.1    90.0    69.0
    multi-similarity, 128-d, 227 x 227 pixels (CRT)    62.64   73.73   83.20

The tables are those of Seidenschwarz et al. (ICML 2021), which quote the authors' results; multi-similarity is from Kan
et al. (NeurIPS 2022), Table 5. Margin and multi-similarity were trained by other recipes than the one used here.
ProxyNCA++ is trained on 256 x 256 pixels, as by its authors; on 227 x 227 pixels Seidenschwarz et al. obtain R@1 66.3
and NMI 71.3 with their code (Table 1). Results of a fixed schedule were not published.

Normalised softmax: batch 75, random crops of 224 pixels, SGD, 30 epochs after 1 of warm-up.

    python -m dml_jax.main --config=configs/cub_baseline.py                        clean protocol, normalised softmax
    python -m dml_jax.main --config=configs/cub_baseline.py:proxy_anchor           another loss
    python -m dml_jax.main --config=configs/cub_baseline.py:proxy_anchor-paper     the authors' protocol

Cost: not published. For the variants and the sources of their settings see configs/recipes/baseline.py.
"""

from ml_collections import ConfigDict

from configs.recipes import baseline
from configs.recipes.published import variants

REPORTED = baseline.every(
    {
        "normalized_softmax": (61.3, 73.9, 83.5, 90.0, 69.7),
        "proxy_anchor": (69.7, 80.0, 87.0, 92.4),
        "proxy_nca_pp": (69.0, None, None, None, 73.9),
        "margin": (63.6, 74.4, 83.1, 90.0, 69.0),
        "multi_similarity": (62.64, 73.73, 83.2),
    }
)
VARIANTS = variants(REPORTED)


def get_config(variant: str = "") -> ConfigDict:
    return baseline.recipe("cub", variant, REPORTED)
