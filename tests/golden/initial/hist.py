"""HIST."""

from tests.golden.initial import Case

CASES = {
    "HIST": {
        "embedding": Case("cars_hist", "embedding"),
        "means (cars)": Case("cars_hist", "distributions/means"),
        "log_vars (cars)": Case("cars_hist", "distributions/log_vars"),
        "means (sop)": Case("sop_hist", "distributions/means"),
        "log_vars (sop)": Case("sop_hist", "distributions/log_vars"),
        "hgnn theta1": Case("cars_hist", "hgnn/block1/theta"),
        "hgnn bn1": Case("cars_hist", "hgnn/block1/bn"),
        "hgnn theta2 (cars)": Case("cars_hist", "hgnn/output"),
    }
}
