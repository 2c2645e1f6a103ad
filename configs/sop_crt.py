"""CRT on Stanford Online Products: MiT-B2, 128-d (Kan, Liang, Li, Cen, Wang, He, NeurIPS 2022).

Published: R@1 83.41 (Table 4); how the epoch was selected is not stated. Cost: not published.
`devices8` and `devices16` are not the paper's: see configs/recipes/large_batch.py.
"""

from configs.crt import recipe
from configs.recipes import large_batch

PAPER_PROTOCOL, VARIANTS, get_config = recipe.on(
    "sop",
    {**recipe.VARIANTS, **large_batch.variants(180, per_device=60)},
    batch_size=180,
    lambda1=(1.0, 0.9),
)
