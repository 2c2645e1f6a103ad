"""DiVA on CUB-200-2011: ResNet-50 or BN-Inception, four embeddings of 128 (Milbich, Roth et al.,
ECCV 2020).

Published: R@1 69.2, and 66.8 with BN-Inception, at the epoch and with the test-time weights that
are best on the test set. A user of the authors' command obtained 68.35 (issue 1 of their
repository). With BN-Inception, alpha is 0.1 as in the code, not 0.15 as in the paper.

Cost: hours not published; 10 to 15 % more than a single task, within 12 GB.
"""

from configs.diva import recipe

BN_INCEPTION = {
    "backbone": recipe.BN_INCEPTION,
    "data.image_size": 227,
    "method.rho": (300.0,),
    **recipe.alpha(0.1),
    "train.milestones": (70,),
    "train.gamma": 0.3,
}
PAPER_PROTOCOL, VARIANTS, get_config = recipe.on(
    "cub",
    {
        "triplet": {"method.base": "triplet"},
        "bn_inception": BN_INCEPTION,
        "bn_inception-triplet": {**BN_INCEPTION, "method.base": "triplet"},
        "printed": recipe.PRINTED,
        "bn_inception-printed": {
            **BN_INCEPTION,
            **recipe.PRINTED,
            "data.image_size": 224,
            **recipe.alpha(0.15),
        },
    },
    alpha=0.3,
    rho=1500.0,
    ensemble=(1.0, 2.0, 2.0, 2.0),
    queue_batches=30,
    epochs=350,
    milestone=55,
    gamma=0.2,
)
