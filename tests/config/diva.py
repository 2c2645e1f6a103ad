"""DiVA's configurations, with the values of the authors' commands and the numbers of the paper."""

from tests.config.cases import Facts

SOURCE = ("paper", "Milbich et al., ECCV 2020")
ALONE = "cub_diva method.tasks=discriminative"

FACTS = Facts(
    files=["cub_diva", "cars_diva", "sop_diva", "inshop_diva"],
    number=18,
    weights={"resnet50", "bn_inception"},
    settings={
        "method.rho method.alpha_intra train.epochs train.milestones train.gamma "
        "method.queue_batches": {
            "cub_diva": ([1500.0], 0.3, 350, [55], 0.2, 30),
            "cub_diva:bn_inception": ([300.0], 0.1, 350, [70], 0.3, 30),
            "cars_diva": ([100.0], 0.15, 350, [70], 0.2, 30),
            "sop_diva": ([150.0], 0.2, 150, [70], 0.3, 70),
            "cars_diva:bn_inception": ([100.0], 0.15, 350, [160], 0.3, 30),
            "sop_diva:bn_inception": ([150.0], 0.1, 150, [80], 0.3, 70),
        },
    },
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
    k_means=("random", 1, 20),  # by faiss
)
