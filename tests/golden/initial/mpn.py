"""MPN."""

from tests.golden.initial import Case

LAYER = "mpn/layer1"
CASES = {
    "MPN": {
        "gnn dim_red": Case("cars_mpn", "mpn/projection"),
        "q_linear": Case("cars_mpn", f"{LAYER}/query"),
        "k_linear": Case("cars_mpn", f"{LAYER}/key_value", columns=(0, 512)),
        "v_linear": Case("cars_mpn", f"{LAYER}/key_value", columns=(512, 1024)),
        "att out": Case("cars_mpn", f"{LAYER}/output"),
        "ff linear1": Case("cars_mpn", f"{LAYER}/ff1"),
        "ff linear2": Case("cars_mpn", f"{LAYER}/ff2"),
        "norm1": Case("cars_mpn", f"{LAYER}/norm1"),
        "neck BN (bias frozen)": Case("cars_mpn", "mpn/neck"),
        "gnn classifier (cars, cat)": Case("cars_mpn", "mpn/classifier"),
        "embedding red": Case("cars_mpn", "embedding"),
        "auxiliary fc (cars)": Case("cars_mpn", "auxiliary"),
    }
}
