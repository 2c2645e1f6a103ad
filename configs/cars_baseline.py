"""The losses of the literature on Cars196: ResNet-50, 512-d or 128-d.

                                                         R@1     R@2     R@4     R@8     NMI
    normalised softmax, 512-d, Table 1                  84.2    90.4    94.4    96.9    74.0
    Proxy-Anchor, 512-d, Table 1                        87.7    92.9    95.8    97.9
    ProxyNCA++, 512-d, 256 x 256 pixels, Table 7        86.5                            73.8
    margin, 128-d, Table 1                              79.6    86.5    91.9    95.1    69.1
    multi-similarity, 128-d, 227 x 227 pixels (CRT)    79.92   87.63   92.41

The tables are those of Seidenschwarz et al. (ICML 2021), which quote the authors' results; multi-similarity is from Kan
et al. (NeurIPS 2022), Table 5. Margin and multi-similarity were trained by other recipes than the one used here.
ProxyNCA++ is trained on 256 x 256 pixels, as by its authors; on 227 x 227 pixels Seidenschwarz et al. obtain R@1 84.9
and NMI 71.5 with their code (Table 1). Results of a fixed schedule were not published.

Normalised softmax: batch 75, random crops of 224 pixels, SGD, 30 epochs after 1 of warm-up.

    python -m dml_jax.main --config=configs/cars_baseline.py                        clean protocol, normalised softmax
    python -m dml_jax.main --config=configs/cars_baseline.py:proxy_anchor           another loss
    python -m dml_jax.main --config=configs/cars_baseline.py:proxy_anchor-paper     the authors' protocol

Cost: not published. For the variants and the sources of their settings see configs/recipes/baseline.py.
"""

from ml_collections import ConfigDict

from configs.recipes import baseline
from configs.recipes.published import variants

REPORTED = baseline.every(
    {
        "normalized_softmax": (84.2, 90.4, 94.4, 96.9, 74.0),
        "proxy_anchor": (87.7, 92.9, 95.8, 97.9),
        "proxy_nca_pp": (86.5, None, None, None, 73.8),
        "margin": (79.6, 86.5, 91.9, 95.1, 69.1),
        "multi_similarity": (79.92, 87.63, 92.41),
    }
)
VARIANTS = variants(REPORTED)


def get_config(variant: str = "") -> ConfigDict:
    return baseline.recipe("cars", variant, REPORTED)
