"""Tables and figures of the reproduction of HIST (Yuan et al., MLRC 2022)."""

from configs.papers import CAPTURE, COMPARE, Paper, Place, studies

PAPER = Paper(
    "HIST: its reproduction",
    "Yuan et al., MLRC 2022",
    (
        "All results are for the epoch that is best on the test classes.",
        "Errata: the summary and the text swap the gains of the retuned values, by Table 3 0.4 on "
        "Cars196 and 0.7 on "
        "CUB; Table 7 lists an embedding of size 32 where all else says 512.",
        "With BN-Inception the authors published tau, alpha and lambda_s only; the other settings "
        "are the "
        "reproduction's.",
        "The numbers of the paper itself (Lim et al., CVPR 2022) are those that the reproduction "
        "quotes.",
        "Equation 4 prints an incidence of 0 and 1, without the rule by which a sample belongs to "
        "a hyperedge, and the "
        "text beside it weights in [0, 1]; these are used, as in the authors' code.",
    ),
    (
        Place("Table 1", "sizes of the data sets", note="`dml-jax prepare` checks them."),
        Place(
            "Tables 2, 8, 9",
            "settings",
            note="Those of `*_hist` and their variants; `--mode=show` prints them. For "
            "BN-Inception on Cars196, "
            "Table 2 prints an alpha of 0.9 and Table 8, which is followed, 1.0.",
        ),
        Place(
            "Table 3",
            "reported, reproduced and retuned results",
            studies("hist:backbones-cub", "hist:backbones-cars", "hist:backbones-sop"),
        ),
        Place("Table 4", "distances", studies("hist:distances-cars")),
        Place(
            "Tables 5, 6",
            "search of the hyperparameters",
            tuple(
                f"python -m benchmarks.papers.search_hist {data}{backbone} --protocol=paper"
                for backbone in ("", "-bn_inception")
                for data in ("cub", "cars", "sop")
            ),
            "The reproduction tried about 200 settings per backbone, 30 on SOP; `--trials` sets "
            "their number.",
        ),
        Place(
            "Table 7",
            "running time",
            note="Every study has a column `time`; the paper's 0.6 to 9.3 hours per run are on a "
            "V100.",
        ),
        Place("Figure 1", "drawing", note=CAPTURE),
        Place(
            "Figure 2",
            "batch size, layers and alpha",
            studies("hist:batch_size-cars", "hist:layers-cars", "hist:alpha-cars"),
            "Values are not printed.",
        ),
        Place("Figure 3a", "sizes of embedding and hypergraph network", studies("hist:sizes-cars")),
        Place("Figure 3b", "tau and lambda_s", studies("hist:tau_lambda-cars")),
        Place(
            "Figure 4",
            "embeddings of training images",
            (COMPARE.format("untrained", "tsne --split=train"),),
            "Projection, colours and classes are not stated; `--classes` chooses classes.",
        ),
        Place(
            "Figure 5",
            "embeddings of test images",
            (COMPARE.format("untrained", "tsne"),),
            "As Figure 4.",
        ),
    ),
)
