"""HIST's configurations, with the values and numbers of the paper and its reproduction."""

from tests.config.cases import Facts

PAPER = ("paper", "Lim et al., CVPR 2022")
LARGE = "embedding_dim=1024 hidden_dim=1024"
REPRODUCTION = ("reproduction", "Yuan et al., MLRC 2022")

FACTS = Facts(
    files=["cub_hist", "cars_hist", "sop_hist", "inshop_hist"],
    number=16,
    weights={"resnet50", "bn_inception"},
    settings={
        # Tables 2 and 8 of the reproduction.
        "method.tau method.alpha method.lambda_s train.groups.distributions.learning_rate": {
            "cub_hist": (32.0, 1.1, 1.0, 0.1),
            "cub_hist:retuned": (24.0, 1.15, 1.0, 0.1),
            "cub_hist:bn_inception": (16.0, 1.0, 1.0, 0.05),
            "cub_hist:bn_inception-retuned": (20.0, 0.95, 1.2, 0.05),
            "cars_hist": (32.0, 0.9, 1.0, 0.1),
            "cars_hist:retuned": (32.0, 0.9, 0.8, 0.1),
            "cars_hist:bn_inception": (24.0, 0.9, 1.0, 0.1),
            "cars_hist:bn_inception-retuned": (22.0, 1.0, 1.5, 0.1),
            "sop_hist": (16.0, 2.0, 1.0, 0.01),
            "sop_hist:retuned": (20.0, 2.1, 0.5, 0.01),
            "sop_hist:bn_inception": (16.0, 1.6, 1.0, 0.01),
            "sop_hist:bn_inception-retuned": (12.0, 1.55, 1.5, 0.01),
        },
        # StepLR of the authors' commands, and table 8 of the reproduction.
        "train.epochs train.period train.gamma": {
            "cub_hist": (40, 5, 0.5),
            "cars_hist": (50, 10, 0.5),
            "sop_hist": (60, 10, 0.5),
            "cub_hist:bn_inception": (30, 5, 0.5),
            "cars_hist:bn_inception": (60, 10, 0.5),
            "sop_hist:bn_inception": (60, 10, 0.5),
        },
    },
    printed=[
        ("cars_hist", *PAPER, {"recall@1": "89.8", "recall@2": "94.0", "nmi": "75.5"}),
        ("cub_hist:bn_inception", *REPRODUCTION, {"recall@1": "68.7", "nmi": "70.3"}),
        (f"hist:sizes-cars/{LARGE}", *REPRODUCTION, {"recall@1": "89.97"}),
    ],
    without_effect=[
        "cub_hist data.images_per_class=2",
        "cub_hist method.hidden_layers=0 method.hidden_dim=8",
        "cub_hist method.tuplets=none method.alpha=0.5",
        "cub_hist method.lambda_s=0 method.hidden_dim=8",
        "cub_hist method.lambda_s=0 method.hidden_layers=2",
        "cub_hist method.lambda_s=0 method.alpha=0.5",
        "cub_hist method.lambda_s=0 method.tuplets=random",
    ],
    free=[("cub_hist", "last", set())],
    nmi_average="geometric",
    k_means=("k-means++", 10, 300),  # by scikit-learn
)
