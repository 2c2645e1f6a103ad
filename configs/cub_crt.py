"""CRT on CUB-200-2011: MiT-B2, 128-d (Kan, Liang, Li, Cen, Wang, He, NeurIPS 2022).

Published: R@1 78.98 (Table 3); how the epoch was selected is not stated. Cost: not published.
"""

from configs.crt import recipe

PAPER_PROTOCOL, VARIANTS, get_config = recipe.on("cub", batch_size=80, lambda1=(1.0, 0.1))
