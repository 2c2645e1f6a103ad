"""HIST on In-Shop Clothes: ResNet-50, 512-d (the method of Lim, Yun, Park, Choi, CVPR 2022).

No results or settings are published for this data set, although the authors' code supports it. The
settings are those of Stanford Online Products, which also has thousands of classes with few images
each. For comparison, Proxy-Anchor, on which the authors' code is based, reaches R@1 92.1 with the
same backbone and 512 dimensions (as quoted by Seidenschwarz et al. 2021, Table 2). Cost: not
published.
"""

from configs import base
from configs.hist import recipe

PAPER_PROTOCOL, VARIANTS, get_config = recipe.on("inshop", {}, base.PAPER_PROTOCOL, **recipe.SOP)
