"""HIST: the studies of its reproduction (Yuan et al., MLRC 2022), one variant per study and data
set.

    dml-jax study --study=hist:layers-cars

Rows of a study differ only in what is studied, so learning rates are equal for all batch sizes. The
reproduction does not say what its number of layers, 1 to 5, counts: since its two layers (Tables 8
and 9) are those of the authors' network, it is interpreted as the number of hidden layers plus one.
"""

from configs import tables
from configs.folder_heads import file_of
from dml_jax.lab.definition import Row, grid

SIZES = {"omniglot": (32, 64, 128)}
TAUS = {"omniglot": (2.5, 5.0, 10.0, 20.0)}
BACKBONES = {
    "BN-Inception": ":bn_inception",
    "BN-Inception, retuned": ":bn_inception-retuned",
    "ResNet-50, retuned": ":retuned",
    "ResNet-50": "",
}
BASELINES = {
    "Proxy-Anchor": "proxy_anchor",
    "multi-similarity": "multi_similarity",
    "normalised softmax": "normalized_softmax",
}
PLACEBOS = {"random tuplets": "random", "permuted tuplets": "permuted", "no hyperedges": "none"}


def rows_of(name: str, data: str) -> tuple[Row, ...]:
    file = file_of(data, "hist")
    config = f"{file}:retuned" if data == "cars" else file
    match name:
        case "backbones":
            return tuple(Row(text, file + variant) for text, variant in BACKBONES.items())
        case "baselines":
            return (
                Row("HIST", file),
                *(Row(text, file_of(data, "baseline", key)) for text, key in BASELINES.items()),
                *(Row(text, file, {"method.tuplets": key}) for text, key in PLACEBOS.items()),
            )
        case "sizes":
            sizes = SIZES.get(data, (256, 512, 1024))
            return grid(config, {"method.embedding_dim": sizes, "method.hidden_dim": sizes})
        case "tau_lambda":
            taus = TAUS.get(data, (8.0, 16.0, 24.0, 32.0))
            lambdas = (0.6, 1.0, 1.5, 2.0) if data == "cars" else (0.6, 1.0, 2.0)
            return grid(config, {"method.tau": taus, "method.lambda_s": lambdas})
    key, values = {
        "batch_size": ("data.batch_size", (8, 16, 32, 64, 100 if data == "lite0" else 128)),
        "layers": ("method.hidden_layers", (0, 1, 2, 3, 4, 5)),
        "alpha": ("method.alpha", (-1.0, -0.5, 0.0, 0.5, 0.9, 0.95, 1.0, 1.1, 1.2, 2.0)),
        "distances": ("method.distance", ("euclidean", "cosine", "manhattan", "mahalanobis")),
    }[name]
    return grid(config, {key: values})


VARIANTS, get_study = tables.contents("hist", "HIST", rows_of)
