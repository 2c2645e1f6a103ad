"""DiVA on In-Shop Clothes: ResNet-50, four embeddings of 128 (the method of Milbich, Roth et al.,
ECCV 2020).

No results or settings are published for this data set, which the authors' code does not support.
The settings are those of Stanford Online Products, which also has thousands of classes with few
images each. Cost: not published.
"""

from configs.diva import recipe

# Without k-means, which is slow with these classes.
PROTOCOL = {
    key: value
    for key, value in recipe.MANY_CLASSES.items()
    if not key.startswith("evaluation.kmeans")
}
PAPER_PROTOCOL, VARIANTS, get_config = recipe.on("inshop", {}, PROTOCOL, **recipe.SOP)
