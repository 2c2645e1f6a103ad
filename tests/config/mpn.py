"""MPN's configurations, with the numbers of the paper and its reproduction."""

from tests.config.cases import Facts

FILES = ["cub_mpn", "cars_mpn", "sop_mpn", "inshop_mpn"]
PAPER = ("paper", "Seidenschwarz et al., ICML 2021")
REPRODUCTION = "[Re] Learning Intra-Batch Connections, MLRC"
SELECTED = ("authors' weights (selected on test)", "reproduction (selected on test)")
ALONE = "cub_mpn method.losses=auxiliary"
FREE = {"k", "k_r", "clusters", "eps", "min_samples"}

FACTS = Facts(
    files=FILES,
    number=12,
    weights={"resnet50"},
    printed=[
        ("cub_mpn", *PAPER, {"recall@8": "92.7", "nmi": "74.0"}),
        ("cars_mpn", "authors' weights", REPRODUCTION, {"recall@2": "92.7", "nmi": "70.9"}),
        ("mpn:ensembles-inshop/5 networks", *PAPER, {"recall@1": "93.4"}),
    ],
    without_effect=[
        "cub_mpn evaluation.refine=reciprocal method.min_samples=3",
        "cub_mpn method.k=10",
        "cub_mpn method.k_r=3",
        f"{ALONE} method.layers=3",
        f"{ALONE} method.heads=8",
        f"{ALONE} method.concatenate=true",
        "cub_mpn method.concatenate=true",
        f"{ALONE} method.dropout=0.5",
    ],
    beside=[  # of its own protocol, or else what differs is said
        (
            "cub_mpn",
            "clean",
            {"paper": {"recall@1": 0.671, "recall@1_stderr": 0.0069}, **{name: {} for name in SELECTED}},
        ),
        ("cub_mpn", "paper", {"paper": {"recall@1": 0.703}, "authors' weights": {}, "reproduction": {}}),
        ("cub_baseline", "clean", {"paper (selected on test)": {}}),
        ("cub_mpn:refined", "paper", {"paper (after refinement, reciprocal)": {}}),
    ],
    free=[("cub_mpn", "last", FREE), ("cub_mpn", "test", FREE)],
    unused=lambda method: {"mpn"} if method.losses == "auxiliary" else set(),
)
