"""CRT on Cars196: MiT-B2, 128-d (Kan, Liang, Li, Cen, Wang, He, NeurIPS 2022).

Published: R@1 91.16 (Table 3); how the epoch was selected is not stated. Cost: not published.
"""

from configs.crt import recipe

PAPER_PROTOCOL, VARIANTS, get_config = recipe.on("cars", batch_size=80, lambda1=(1.0, 0.1))
