"""Tables and figures of CRT (Kan et al., NeurIPS 2022)."""

from configs.papers import CAPTURE, DATA, FIGURES, Paper, Place, runs, studies

PAPER = Paper(
    "CRT: Coded Residual Transform",
    "Kan et al., NeurIPS 2022",
    (
        "Neither optimizer nor length is stated, and no code is public: `configs/crt/recipe.py` "
        "lists what was chosen."
        " Nothing can be promised about reaching the numbers.",
        "Hyper-parameters come from an 80-20 split of the training data; how the reported epoch "
        "was selected is "
        "not stated, nor whether DeiT-S is the plain or the distilled network.",
        "Errata: consistency gains 1.72 points of R@1 by Table 6, not the 1.69 of the text; "
        "ResNet-50 gains 1.81 points of R@2 on CUB by its rows in Table 5, not 1.89.",
    ),
    (
        Place(
            "Tables 1, 2",
            "density and spectral decay of the embeddings",
            studies(*(f"crt:geometry-{data}" for data in DATA)),
            "Not in percent; a higher density and a lower decay (in nats) are better. The "
            "backbone is not stated; "
            "here it is MiT-B2.",
        ),
        Place("Table 3", "results on CUB and Cars196", runs("cub_crt", "cars_crt")),
        Place("Table 4", "results on SOP and In-Shop", runs("sop_crt", "inshop_crt")),
        Place(
            "Table 5",
            "backbones, with and without CRT",
            studies(*(f"crt:backbones-{data}" for data in DATA)),
        ),
        Place("Table 6", "components", studies("crt:components-cub")),
        Place("Table 7", "one head or one per prototype", studies("crt:gamma-cub")),
        Place("Table 8", "prototypes of the first branch", studies("crt:first_prototypes-cub")),
        Place("Table 9", "prototypes of both branches", studies("crt:prototypes-cub")),
        Place("Table 10", "shared weights", studies("crt:sharing-cub")),
        Place("Figures 1, 3", "drawings", note=CAPTURE),
        Place(
            "Figure 2",
            "maps of the correlation with the prototypes",
            (FIGURES.format("crt"),),
            "The authors' images are not known.",
        ),
    ),
)
