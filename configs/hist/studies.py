"""HIST: the studies of its reproduction (Yuan et al., MLRC 2022), one variant per study and data
set.

    dml-jax study --study=hist:layers-cars

`backbones` are Table 3, `distances` Table 4 (without the Manhattan distance), `batch_size`,
`layers` and `alpha` Figures 2a to 2c, `sizes` and `tau_lambda` Figures 3a and 3b; `baselines`
compares with other losses on the network. Rows of a study differ in nothing else, so the learning
rates are the same for all batch sizes. The reproduction does not say what its number of layers, 1
to 5, counts: since its two layers (Tables 8 and 9) are those of the authors' network, it is
interpreted as the number of hidden layers plus one.
"""

from configs import published
from configs.folder_heads import file_of
from dml_jax.lab.definition import Row, Study, grid

SIZES = {"cars": (256, 512, 1024), "omniglot": (32, 64, 128), "lite0": (256, 512, 1024)}
TAUS = {
    "cars": (8.0, 16.0, 24.0, 32.0),
    "omniglot": (2.5, 5.0, 10.0, 20.0),
    "lite0": (8.0, 16.0, 24.0, 32.0),
}
LAMBDAS = {"cars": (0.6, 1.0, 1.5, 2.0), "omniglot": (0.6, 1.0, 2.0), "lite0": (0.6, 1.0, 2.0)}
TEXTS = {  # what varies, and the reproduction's statement
    "backbones": (
        "backbones and retuned values",
        "Table 3; only the reproduction retuned the values.",
    ),
    "batch_size": (
        "batch size",
        "Figure 2a: consistent from 32 on, clearly worse with 8 and 16; values are not printed.",
    ),
    "layers": (
        "hidden layers of the hypergraph network",
        "Figure 2b: with two or more hidden layers R@1 is about 3 lower; values are not printed.",
    ),
    "alpha": (
        "scale alpha of the hyperedges' weights",
        "Figure 2c: the results hardly depend on a positive alpha; values are not printed.",
    ),
    "distances": (
        "distances to the class distributions",
        "Table 4, which calls the differences insignificant.",
    ),
    "sizes": (
        "sizes of embedding and hypergraph network",
        "Figure 3a: best if both are 512 or both 1,024; worst if both are 256.",
    ),
    "tau_lambda": (
        "tau and lambda_s",
        "Figure 3b: consistent from tau = 16 on, where lambda_s matters little.",
    ),
    "baselines": (
        "other losses on the same network",
        "Table 3: better than the losses that it is compared with.",
    ),
}
GRIDS = [name for name in TEXTS if name not in ("backbones", "baselines")]
VARIANTS = (
    *(f"{name}-{data}" for name in GRIDS for data in ("cars", "omniglot", "lite0")),
    *(f"backbones-{data}" for data in ("cub", "cars", "sop")),
    *(f"baselines-{data}" for data in ("cub", "cars", "omniglot", "lite0", "lite0_stages")),
)
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
            return (
                Row("BN-Inception", f"{file}:bn_inception"),
                Row("BN-Inception, retuned", f"{file}:bn_inception-retuned"),
                Row("ResNet-50, retuned", f"{file}:retuned"),
                Row("ResNet-50", file),
            )
        case "baselines":
            return (
                Row("HIST", file),
                *(Row(text, file_of(data, "baseline", key)) for text, key in BASELINES.items()),
                *(Row(text, file, {"method.tuplets": key}) for text, key in PLACEBOS.items()),
            )
        case "sizes":
            return grid(
                config, {"method.embedding_dim": SIZES[data], "method.hidden_dim": SIZES[data]}
            )
        case "tau_lambda":
            return grid(config, {"method.tau": TAUS[data], "method.lambda_s": LAMBDAS[data]})
    key, values = {
        "batch_size": ("data.batch_size", (8, 16, 32, 64, 100 if data == "lite0" else 128)),
        "layers": ("method.hidden_layers", (0, 1, 2, 3, 4, 5)),
        "alpha": ("method.alpha", (-1.0, -0.5, 0.0, 0.5, 0.9, 0.95, 1.0, 1.1, 1.2, 2.0)),
        "distances": ("method.distance", ("euclidean", "cosine", "manhattan", "mahalanobis")),
    }[name]
    return grid(config, {key: values})


def get_study(variant: str = "layers-cars") -> Study:
    name, _, data = variant.partition("-")
    title, source = TEXTS[name]
    study = Study(f"HIST, {title}: {data}", f"Reproduction, {source}", rows_of(name, data))
    return published.beside_rows(f"hist:{variant}", study)
