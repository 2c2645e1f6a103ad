"""CRT on In-Shop Clothes: MiT-B2, 128-d (Kan, Liang, Li, Cen, Wang, He, NeurIPS 2022).

Published: R@1 94.48 (Table 4); how the epoch was selected is not stated. Cost: not published.
"""

from configs.crt import recipe

PAPER_PROTOCOL, VARIANTS, get_config = recipe.on("inshop", batch_size=180, lambda1=(1.0, 0.9))
