"""CRT's configurations, with the numbers of the paper."""

from tests.config.cases import Facts

FILES = ["cub_crt", "cars_crt", "sop_crt", "inshop_crt"]
SOURCE = ("paper", "Kan et al., NeurIPS 2022")
QUOTED = "paper (227 x 227 pixels, another recipe; selection not stated)"
AVERAGE = "cub_crt method.transform=average"

FACTS = Facts(
    files=FILES,
    number=25,
    weights={"deit_small", "googlenet", "mit_b1", "mit_b2", "bn_inception"},
    printed=[("sop_crt", *SOURCE, {"recall@1": "83.41", "recall@1000": "99.31"})],
    without_effect=[
        f"{AVERAGE} method.prototypes=8,8",
        f"{AVERAGE} method.hidden_dim=8",
        f"{AVERAGE} method.gamma=single",
        f"{AVERAGE} method.sharing=separate",
        f"{AVERAGE} method.w_div=2",
        "cub_crt method.lambda2=0 method.consistency=sum",
    ],
    beside=[("cub_baseline:multi_similarity", "paper", {QUOTED: {}})],
    free=[("cub_crt", "last", {"tested_branch"}), ("cub_crt", "test", set())],
)
