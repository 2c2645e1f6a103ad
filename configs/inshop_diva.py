"""DiVA on In-Shop Clothes: ResNet-50, four embeddings of 128 (the method of Milbich, Roth et al., ECCV 2020).

No results or settings are published for this data set, which the authors' code does not support. The settings are those
of Stanford Online Products, which also has thousands of classes with few images each. Cost: not published.
"""

from ml_collections import ConfigDict

from configs.recipes import diva

# Without k-means, which is slow with these classes.
PAPER_PROTOCOL = {key: value for key, value in diva.MANY_CLASSES.items() if not key.startswith("evaluation.kmeans")}


def get_config() -> ConfigDict:
    return diva.config(
        "inshop", "", {},
        alpha=0.2, rho=150.0, ensemble=(1.0, 1.0, 1.0, 1.0), queue_batches=70,
        epochs=150, milestone=70, gamma=0.3,
    )  # fmt: skip
