"""The Group Loss on CUB-200-2011: BN-Inception, 1,024-d (Elezi, Vascon, Torcinovich, Pelillo,
Leal-Taixé, ECCV 2020).

Published for the authors' protocol: R@1 65.5, as quoted by Seidenschwarz et al. (ICML 2021), Table
1. Cost: not published. For the settings, see configs/group_loss/recipe.py.
"""

from configs.group_loss import recipe

PAPER_PROTOCOL, VARIANTS, get_config = recipe.on(
    "cub", batch_size=54, images_per_class=9, anchors=2, temperature=24.0,
    rate=0.0001563663718906821, decay=6.059722614369727e-06,
)  # fmt: skip
