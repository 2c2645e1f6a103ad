"""The Group Loss on Cars196: BN-Inception, 1,024-d (Elezi, Vascon, Torcinovich, Pelillo,
Leal-Taixé, ECCV 2020).

Published for the authors' protocol: R@1 85.6, as quoted by Seidenschwarz et al. (ICML 2021), Table
1. Cost: not published. For the settings, see configs/group_loss/recipe.py.
"""

from configs.group_loss import recipe

PAPER_PROTOCOL, VARIANTS, get_config = recipe.on(
    "cars",
    batch_size=35,
    images_per_class=7,
    anchors=3,
    temperature=79.0,
    rate=0.0002,
    decay=4.863656728256105e-07,
)
