"""The forms of distillation of MPN's students (Seidenschwarz, Elezi, Leal-Taixé, ICML 2021,
appendix C.4).

The paper does not say which form of distillation its students used, so both list its result. Nor
does it say whether the cross-entropy with the labels is kept; here it is.
"""

from configs import base

KINDS: base.Variants = {
    "distillation_kl": {"method.kind": "distillation_kl"},
    "imitation": {"method.kind": "imitation", "method.soft_temperature": 1.0},
    "relational": {
        "method.kind": "relational",
        "method.weight": 0.01,
        "method.soft_temperature": 1.0,
    },
}
