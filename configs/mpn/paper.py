"""Tables and figures of MPN (Seidenschwarz, Elezi, Leal-Taixé, ICML 2021)."""

from configs.papers import (
    ANALYSE,
    CAPTURE,
    COMPARE,
    DATA,
    FIGURES,
    Paper,
    Place,
    installed,
    runs,
    studies,
)

PAPER = Paper(
    "MPN: Learning Intra-Batch Connections",
    "Seidenschwarz et al., ICML 2021",
    (
        "All results except Table 9's are for the epoch that is best on the test classes, and the "
        "training "
        "returned twice to the best epoch so far; the authors' protocol does both.",
        "The authors' configuration of SOP leaves the message passing network untrained "
        "(`sop_mpn:auxiliary`); it is "
        "unknown which of the two gave the published results.",
        "On Cars196 the results with message passing at test time are of another network, with "
        "one layer and four "
        "heads.",
        "The authors' code does not compute the NMI on SOP.",
        "Errata in the text, by the tables: two networks gain 2.8 points of R@1 on Cars196, not "
        "3.0, and five gain 0.2 points of NMI on SOP, not 0.6 (Table 4); larger images gain 2.1 "
        "points of R@1 on Cars196, not 1.9 (Table 7).",
        "The settings of the Group Loss on SOP (R@1 75.1 in Table 1, 75.7 to 76.3 in Table 4) are "
        "not known, so it is "
        "left out.",
    ),
    (
        Place(
            "Table 1",
            "results on CUB, Cars196 and SOP",
            runs(
                "cub_mpn",
                "cars_mpn",
                "sop_mpn",
                "cub_group_loss",
                "cars_group_loss",
                "cub_baseline",
                "cars_baseline",
                "sop_baseline",
            ),
            "The last three are the normalised softmax; `:proxy_anchor`, `:margin` and "
            "`:proxy_nca_pp-227` are their "
            "variants.",
        ),
        Place(
            "Table 2",
            "results on In-Shop",
            runs("inshop_mpn", "inshop_baseline:proxy_anchor", "inshop_baseline:proxy_nca_pp-227"),
        ),
        Place(
            "Table 3",
            "the two losses, and message passing at test time",
            studies("mpn:losses-cub", "mpn:losses-cars"),
        ),
        Place(
            "Table 4",
            "ensembles of two and five networks, also of the Group Loss",
            studies(*(f"mpn:ensembles-{data}" for data in DATA)),
            "For single networks, see Tables 1 and 2.",
        ),
        Place(
            "Table 5",
            "size of the embedding; Figure 5 draws it",
            studies(*(f"mpn:embedding_size-{data}" for data in DATA)),
            "For 512 dimensions, see Tables 1 and 2.",
        ),
        Place(
            "Table 6",
            "ProxyNCA++ at 227 pixels",
            runs(*(f"{data}_baseline:proxy_nca_pp-227" for data in DATA)),
        ),
        Place(
            "Table 7",
            "larger images",
            studies(*(f"mpn:image_size-{data}" for data in DATA))
            + runs(*(f"{data}_baseline:proxy_nca_pp" for data in DATA)),
            "For 227 pixels, see Tables 1 and 2.",
        ),
        Place(
            "Table 8",
            "batches at test time, and students",
            studies(
                "mpn:test_time-cub",
                "mpn:test_time-cars",
                *(("mpn:students-cub", "mpn:students-cars") if installed("student") else ()),
            ),
            "Of the authors' two losses for distillation, the paper does not state which gave the "
            "result.",
        ),
        Place(
            "Table 9",
            "without selection on the test classes",
            tuple(f"python -m dml_jax.main --config={data}_mpn" for data in DATA),
            "The authors searched the hyperparameters again, without the test classes; here they "
            "come from the "
            "other tables, with a fixed schedule.",
        ),
        Place("Figures 1, 2, 9", "drawings", note=CAPTURE),
        Place(
            "Figures 3, 4, 17",
            "layers and heads",
            studies("mpn:layers_heads-cub", "mpn:layers_heads-cars", "mpn:layers_heads-sop"),
            "Values are not printed. The figures show differences to the best R@1; the study "
            "writes a heat "
            "map of R@1 (`grid.png`).",
        ),
        Place(
            "Figures 6, 10-13",
            "retrieved images",
            (ANALYSE + "retrieval",),
            "The authors' queries are not known.",
        ),
        Place(
            "Figures 7, 14",
            "embeddings of a batch, without and with message passing",
            (
                FIGURES.format("mpn") + " --what batch --compare=runs/OTHER",
                FIGURES.format("mpn") + " --what influence",
            ),
            "The first command: two runs with `--config.train.epochs=1`, of which OTHER is "
            "without the network (`--config.method.losses=auxiliary`). The second is a statement "
            "of the text about Figure 7: on which images of the batch a prediction depends, before "
            "and after training.",
        ),
        Place(
            "Figure 8",
            "recall on training and test classes beside the Group Loss",
            (
                *(studies("mpn:group_loss-cub") if installed("group_loss") else ()),
                COMPARE.format("runs/OTHER", "overfitting"),
            ),
            "Runs with `--config.train.keep_every=100`, of which OTHER is of `cub_group_loss`.",
        ),
        Place(
            "Figures 15, 16",
            "embeddings of ten classes, without and with message passing",
            (COMPARE.format("runs/OTHER", "tsne --classes=10"),),
            "OTHER is without the network (`--config.method.losses=auxiliary`). The authors' "
            "classes are not known.",
        ),
        Place(
            "Figures 18, 19",
            "classes per batch and images per class",
            studies("mpn:batches-cub", "mpn:batches-cars"),
            "As Figure 3.",
        ),
        Place("Figure 20", "t-SNE of the test images with thumbnails", (ANALYSE + "tsne",)),
    ),
)
