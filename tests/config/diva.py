"""DiVA's configurations, with the numbers of the paper."""

from tests.config.cases import Facts

SOURCE = ("paper", "Milbich et al., ECCV 2020")
ALONE = "cub_diva method.tasks=discriminative"

FACTS = Facts(
    files=["cub_diva", "cars_diva", "sop_diva", "inshop_diva"],
    number=18,
    weights={"resnet50", "bn_inception"},
    printed=[
        ("cub_diva:bn_inception", *SOURCE, {"recall@1": "66.8", "nmi": "70.0"}),
        ("diva:separate-cub/separate models", *SOURCE, {"recall@1": "48.7"}),
    ],
    without_effect=[
        f"{ALONE} method.alpha_selfsimilarity=0.7",
        f"{ALONE} method.alpha_shared=0.7",
        f"{ALONE} method.alpha_intra=0.7",
        f"{ALONE} method.shared=standard",
        f"{ALONE} method.dance=off",
        f"{ALONE} method.temperature=0.5",
        f"{ALONE} method.queue_batches=7",
        f"{ALONE} method.momentum=0.5",
        f"{ALONE} method.rho=7,",
        f"{ALONE} method.psi_dim=7",
        "cub_diva method.base=triplet method.beta=1",
        "cub_diva method.equations=paper method.dance=fixed",
    ],
    late=["cars_diva:bn_inception-printed"],  # the text's epochs with the code's milestone
    free=[("cub_diva", "last", {"ensemble"}), ("cub_diva", "test", set())],
    unused=lambda method: {"beta"} if method.base == "triplet" else set(),
)
