"""HIST's configurations, with the numbers of the paper and its reproduction."""

from tests.config.cases import Facts

PAPER = ("paper", "Lim et al., CVPR 2022")
LARGE = "embedding_dim=1024 hidden_dim=1024"
REPRODUCTION = ("reproduction", "Yuan et al., MLRC 2022")

FACTS = Facts(
    files=["cub_hist", "cars_hist", "sop_hist", "inshop_hist"],
    number=16,
    weights={"resnet50", "bn_inception"},
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
    beside=[("cub_hist:retuned", "paper", {"reproduction": {}}), ("inshop_hist", "paper", {})],
    as_baseline=["omniglot_hist", "digits_hist"],
    photos=("folder_hist", "small"),
)
