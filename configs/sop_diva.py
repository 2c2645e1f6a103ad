"""DiVA on Stanford Online Products: ResNet-50 or BN-Inception, 4 embeddings of 128 (Milbich, Roth
et al., ECCV 2020).

Published: R@1 79.6, and 78.1 with BN-Inception, at the epoch and with the test-time weights that
are best on the test set. No reproduction is known. Section 4 of the paper gives alpha = 0.2 for
BN-Inception; the authors' command, which is followed here, has another.

Cost: hours not published; 10 to 15 % more than a single task, within 12 GB. `devices8` and
`devices16` are not the paper's: see configs/recipes/large_batch.py; their queues are about as long
as the paper's.
"""

from configs.diva import recipe
from configs.recipes import large_batch

BN_INCEPTION = {
    "backbone": recipe.BN_INCEPTION,
    "data.image_size": 227,
    **recipe.alpha(0.1),
    "train.milestones": (80,),
}
LARGE = large_batch.variants(112, per_device=64)
PAPER_PROTOCOL, VARIANTS, get_config = recipe.on(
    "sop",
    {
        "triplet": {"method.base": "triplet"},
        "bn_inception": BN_INCEPTION,
        "bn_inception-triplet": {**BN_INCEPTION, "method.base": "triplet"},
        "printed": recipe.PRINTED,
        "bn_inception-printed": {
            **BN_INCEPTION,
            **recipe.PRINTED,
            "data.image_size": 224,
            **recipe.alpha(0.2),
        },
        "devices8": {**LARGE["devices8"], "method.queue_batches": 15},
        "devices16": {**LARGE["devices16"], "method.queue_batches": 8},
    },
    recipe.MANY_CLASSES,
    **recipe.SOP,
)
