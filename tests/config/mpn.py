"""MPN's configurations, with the values and numbers of the paper, its authors' code and its
reproduction."""

from tests.config.cases import Facts

FILES = ["cub_mpn", "cars_mpn", "sop_mpn", "inshop_mpn"]
PAPER = ("paper", "Seidenschwarz et al., ICML 2021")
REPRODUCTION = "[Re] Learning Intra-Batch Connections, MLRC"
ALONE = "cub_mpn method.losses=auxiliary"
FREE = {"k", "k_r"}

FACTS = Facts(
    files=FILES,
    number=12,
    weights={"resnet50"},
    settings={  # the authors' configuration files
        "train.groups.mpn.learning_rate train.groups.mpn.weight_decay": {
            "cub_mpn": (0.0001563663718906821, 6.059722614369727e-06),
            "cars_mpn": (0.00036683239911604993, 2.551918610962277e-09),
            "sop_mpn": (0.0002472471515853406, 2.7650277063275255e-13),
            "inshop_mpn": (0.00011265974954242144, 1.0554824926510768e-07),
        },
        "data.batch_size method.temperature method.layers method.heads": {
            "cub_mpn": (54, 0.2, 1, 2),
            "cars_mpn": (70, 0.1111111111111, 2, 8),
            "sop_mpn": (90, 0.6046908988578005, 1, 8),
            "inshop_mpn": (56, 0.18591347176280537, 1, 4),
        },
        "train.epochs train.milestones": dict.fromkeys(FILES, (70, [30])),
    },
    printed=[
        ("cub_mpn", *PAPER, {"recall@8": "92.7", "nmi": "74.0"}),
        ("cars_mpn", "authors' weights", REPRODUCTION, {"recall@2": "92.7", "nmi": "70.9"}),
        ("mpn:ensembles-inshop/5 networks", *PAPER, {"recall@1": "93.4"}),
    ],
    without_effect=[
        "cub_mpn evaluation.refine=reciprocal evaluation.refine_min_samples=3",
        "cub_mpn method.k=10",
        "cub_mpn method.k_r=3",
        f"{ALONE} method.layers=3",
        f"{ALONE} method.heads=8",
        f"{ALONE} method.concatenate=true",
        "cub_mpn method.concatenate=true",
        f"{ALONE} method.dropout=0.5",
    ],
    free=[("cub_mpn", "last", FREE), ("cub_mpn", "test", FREE)],
    unused=lambda method: {"mpn"} if method.losses == "auxiliary" else set(),
    reloaded=(30, 50),
)
