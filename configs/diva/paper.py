"""Tables and figures of DiVA (Milbich et al., ECCV 2020)."""

from configs.papers import CAPTURE, COMPARE, Paper, Place, studies

PAPER = Paper(
    "DiVA: Diverse Visual Feature Aggregation",
    "Milbich et al., ECCV 2020",
    (
        "Where text and code differ, the code is followed (`configs/diva/recipe.py`); the "
        "variants `printed` and "
        "`bn_inception-printed` follow the text.",
        "The results are for the epoch and the weights of the embeddings that are best on the "
        "test classes; the "
        "authors' protocol selects both.",
        "With the authors' command for CUB, a user obtained R@1 68.35 instead of 69.2.",
        "Erratum: the gains of 2.1 and 1.2 points in the text of section 4.3 are 2.0 and 0.8 by "
        "Table 3.",
    ),
    (
        Place(
            "Table 1",
            "combinations of tasks",
            studies("diva:tasks-cub", "diva:tasks-cars", "diva:tasks-sop"),
        ),
        Place(
            "Table 2",
            "results, by backbone and loss",
            studies("diva:backbones-cub", "diva:backbones-cars", "diva:backbones-sop"),
            "The paper heads a column of SOP R@2, but its values are R@10.",
        ),
        Place(
            "Table 3",
            "no decorrelation, separate models",
            studies("diva:separate-cub"),
            "The data set is not stated; the values fit CUB. Baseline and DiVA are the first and "
            "the last row of "
            "Table 1.",
        ),
        Place(
            "Figures 1, 4",
            "self-supervised tasks instead of DaNCE, an ensemble",
            studies(
                "diva:self_supervision-cub",
                "diva:self_supervision-cars",
                "diva:self_supervision-sop",
            ),
            "Values are not printed. The left part of Figure 1 repeats Table 1.",
        ),
        Place("Figures 2, 3", "drawings", note=CAPTURE),
        Place(
            "Figure 5",
            "spectra of the embeddings",
            (*studies("diva:separate-cub"), COMPARE.format("runs/OTHER", "spectra")),
            "The second command is for the margin loss alone (baseline) beside DiVA, or for any "
            "two runs.",
        ),
    ),
)
