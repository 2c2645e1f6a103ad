"""The tables and figures of the papers and reproductions: the command for each, and the limits of what it can
reproduce.

The site has a page for each paper, generated from this list, `published.csv` and the files that it names.
"""

from typing import NamedTuple

ANALYSE = "dml-jax analyse --model=runs/NAME --what="
COMPARE = "dml-jax analyse --model=runs/NAME --compare={} --what={}"
CAPTURE = "Illustrations of the method, without numbers."
AUTHORS_WEIGHTS = (
    "The authors' weights: `dml-jax convert --weights=BACKBONE.pth,NETWORK.pth --output=weights/cub_mpn`, then "
    "`python -m dml_jax.main --config=cub_mpn --mode=evaluate --config.init_from=weights/cub_mpn`, with "
    "`--config.evaluation.refine=reciprocal` for Table 3."
)


class Place(NamedTuple):
    """A table or a figure.

    Attributes:
      name: "Table 3".
      about: content, in a few words.
      commands: to reproduce it; NAME and OTHER are finished runs.
      note: differences from the paper, or why there is no command.
    """

    name: str
    about: str
    commands: tuple[str, ...] = ()
    note: str = ""


class Paper(NamedTuple):
    """A paper or a reproduction.

    Attributes:
      title: heading of the page.
      source: the name in `published.csv`.
      limits: unpublished conditions of its numbers, or conditions not followed here.
      places: its tables and figures, in their order.
    """

    title: str
    source: str
    limits: tuple[str, ...]
    places: tuple[Place, ...]


def studies(*names: str) -> tuple[str, ...]:
    """The commands of studies."""
    return tuple(f"dml-jax study --study={name} --protocol=paper" for name in names)


def runs(*names: str) -> tuple[str, ...]:
    """The commands of configurations."""
    return tuple(f"python -m dml_jax.main --config={name} --protocol=paper" for name in names)


DATA = ("cub", "cars", "sop", "inshop")
MPN = Paper(
    "MPN: Learning Intra-Batch Connections",
    "Seidenschwarz et al., ICML 2021",
    (
        "All results except Table 9's are for the epoch that is best on the test classes, and the training "
        "returned twice to the best epoch so far; the authors' protocol does both.",
        "The authors' configuration of SOP leaves the message passing network untrained (`sop_mpn:auxiliary`); it is "
        "unknown which of the two gave the published results.",
        "On Cars196 the results with message passing at test time are of another network, with one layer and four "
        "heads.",
        "The authors' code does not compute the NMI on SOP.",
        "The settings of the Group Loss on SOP (R@1 75.1 in Table 1, 75.7 to 76.3 in Table 4) are not known, so it is "
        "left out.",
    ),
    (
        Place("Table 1", "results on CUB, Cars196 and SOP",
              runs("cub_mpn", "cars_mpn", "sop_mpn", "cub_group_loss", "cars_group_loss", "cub_baseline",
                   "cars_baseline", "sop_baseline"),
              "The last three are the normalised softmax; `:proxy_anchor`, `:margin` and `:proxy_nca_pp-227` are their "
              "variants."),
        Place("Table 2", "results on In-Shop",
              runs("inshop_mpn", "inshop_baseline:proxy_anchor", "inshop_baseline:proxy_nca_pp-227")),
        Place("Table 3", "the two losses, and message passing at test time",
              studies("mpn:losses-cub", "mpn:losses-cars")),
        Place("Table 4", "ensembles of two and five networks, also of the Group Loss",
              studies(*(f"mpn:ensembles-{data}" for data in DATA)),
              "For single networks, see Tables 1 and 2."),
        Place("Table 5", "size of the embedding; Figure 5 draws it",
              studies(*(f"mpn:embedding_size-{data}" for data in DATA)), "For 512 dimensions, see Tables 1 and 2."),
        Place("Table 6", "ProxyNCA++ at 227 pixels", runs(*(f"{data}_baseline:proxy_nca_pp-227" for data in DATA))),
        Place("Table 7", "larger images", studies(*(f"mpn:image_size-{data}" for data in DATA))
              + runs(*(f"{data}_baseline:proxy_nca_pp" for data in DATA)), "For 227 pixels, see Tables 1 and 2."),
        Place("Table 8", "batches at test time, and students",
              studies("mpn:test_time-cub", "mpn:test_time-cars", "mpn:students-cub", "mpn:students-cars"),
              "Of the authors' two losses for distillation, the paper does not state which gave the result."),
        Place("Table 9", "without selection on the test classes",
              tuple(f"python -m dml_jax.main --config={data}_mpn" for data in DATA),
              "The authors searched the hyperparameters again, without the test classes; here they come from the "
              "other tables, with a fixed schedule."),
        Place("Figures 1, 2, 9", "drawings", note=CAPTURE),
        Place("Figures 3, 4, 17", "layers and heads",
              studies("mpn:layers_heads-cub", "mpn:layers_heads-cars", "mpn:layers_heads-sop"),
              "Values are not printed. The figures show differences to the best R@1; the study writes a heat "
              "map of R@1 (`grid.png`)."),
        Place("Figures 6, 10-13", "retrieved images", (ANALYSE + "retrieval",), "The authors' queries are not known."),
        Place("Figures 7, 14", "embeddings of a batch, without and with message passing",
              (COMPARE.format("runs/OTHER", "tsne --split=batch"), COMPARE.format("refined", "tsne --split=batch"),
               ANALYSE + "influence"),
              "The first command: two runs with `--config.train.epochs=1`, of which OTHER is without the network "
              "(`--config.method.losses=auxiliary`). The second: one run, without and with message passing. The third "
              "is a statement of the text about Figure 7: on which images of the batch a prediction depends, before "
              "and after training."),
        Place("Figure 8", "recall on training and test classes beside the Group Loss",
              (*studies("mpn:group_loss-cub"), COMPARE.format("runs/OTHER", "overfitting")),
              "Runs with `--config.train.keep_every=100`, of which OTHER is of `cub_group_loss`."),
        Place("Figures 15, 16", "embeddings of ten classes, without and with message passing",
              (COMPARE.format("runs/OTHER", "tsne --classes=10"),),
              "OTHER is without the network (`--config.method.losses=auxiliary`). The authors' classes are not known."),
        Place("Figures 18, 19", "classes per batch and images per class",
              studies("mpn:batches-cub", "mpn:batches-cars"), "As Figure 3."),
        Place("Figure 20", "t-SNE of the test images with thumbnails", (ANALYSE + "tsne",)),
    ),
)  # fmt: skip
RE_MPN = Paper(
    "MPN: its reproduction",
    "[Re] Learning Intra-Batch Connections, MLRC",
    (
        "How the standard errors (±) were computed is not stated. For recalls they equal √(p(1 − p)/n) to about 0.005 "
        "points, but for R@10 of the reproduction on SOP: 0.10 is printed, and the formula gives 0.116.",
    ),
    (
        Place("Table 1", "settings, and the range of the authors' search",
              studies(*(f"re_mpn_table1:{data}" for data in DATA)),
              "The settings come from `*_mpn`, and the studies are the search. On CUB the authors' code draws a new "
              "number of classes per batch in every epoch; `cub_mpn:printed` always has 6 classes of 9 images. The "
              "weight decay on In-Shop is misprinted as 1.55e-7."),
        Place("Table 2", "the paper, the authors' weights evaluated again, and the reproduction",
              studies("mpn:re_table2-all"), AUTHORS_WEIGHTS),
        Place("Table 3", "message passing at test time", studies("mpn:re_table3-cub", "mpn:re_table3-cars"),
              AUTHORS_WEIGHTS),
        Place("Figure 1", "divergence of the attention from uniform, by head", (ANALYSE + "attention",),
              "For a run of `cub_mpn` with `--config.train.keep_every=100`."),
        Place("Figure 2", "attention of one node over the training", (ANALYSE + "attention --batch=0 --node=10",),
              "For the same run; one panel per head."),
    ),
)  # fmt: skip
HIST = Paper(
    "HIST: its reproduction",
    "Yuan et al., MLRC 2022",
    (
        "All results are for the epoch that is best on the test classes.",
        "Errata: the summary and the text swap the gains of the retuned values, by Table 3 0.4 on Cars196 and 0.7 on "
        "CUB; Table 7 lists an embedding of size 32 where all else says 512.",
        "With BN-Inception the authors published tau, alpha and lambda_s only; the other settings are the "
        "reproduction's.",
        "The numbers of the paper itself (Lim et al., CVPR 2022) are those that the reproduction quotes.",
        "Equation 4 prints an incidence of 0 and 1, without the rule by which a sample belongs to a hyperedge, and the "
        "text beside it weights in [0, 1]; these are used, as in the authors' code.",
    ),
    (
        Place("Table 1", "sizes of the data sets", note="`dml-jax prepare` checks them."),
        Place("Tables 2, 8, 9", "settings",
              note="Those of `*_hist` and their variants; `--mode=show` prints them. For BN-Inception on Cars196, "
                   "Table 2 prints an alpha of 0.9 and Table 8, which is followed, 1.0."),
        Place("Table 3", "reported, reproduced and retuned results",
              studies("hist:backbones-cub", "hist:backbones-cars", "hist:backbones-sop")),
        Place("Table 4", "distances", studies("hist:distances-cars")),
        Place("Tables 5, 6", "search of the hyperparameters",
              studies(*(f"hist_search:{data}{backbone}" for backbone in ("", "-bn_inception")
                        for data in ("cub", "cars", "sop"))),
              "The reproduction tried about 200 settings per backbone, 30 on SOP; `--trials` sets their number."),
        Place("Table 7", "running time",
              note="Every study has a column `time`; the paper's 0.6 to 9.3 hours per run are on a V100."),
        Place("Figure 1", "drawing", note=CAPTURE),
        Place("Figure 2", "batch size, layers and alpha",
              studies("hist:batch_size-cars", "hist:layers-cars", "hist:alpha-cars"), "Values are not printed."),
        Place("Figure 3a", "sizes of embedding and hypergraph network", studies("hist:sizes-cars")),
        Place("Figure 3b", "tau and lambda_s", studies("hist:tau_lambda-cars")),
        Place("Figure 4", "embeddings of training images", (COMPARE.format("untrained", "tsne --split=train"),),
              "Projection, colours and classes are not stated; `--classes` chooses classes."),
        Place("Figure 5", "embeddings of test images", (COMPARE.format("untrained", "tsne"),),
              "As Figure 4."),
    ),
)  # fmt: skip
CRT = Paper(
    "CRT: Coded Residual Transform",
    "Kan et al., NeurIPS 2022",
    (
        "Neither optimizer nor length is stated, and no code is public: `configs/recipes/crt.py` lists what was chosen."
        " Nothing can be promised about reaching the numbers.",
        "Hyper-parameters come from an 80-20 split of the training data; how the reported epoch was selected is "
        "not stated, nor whether DeiT-S is the plain or the distilled network.",
    ),
    (
        Place("Tables 1, 2", "density and spectral decay of the embeddings",
              studies(*(f"crt:geometry-{data}" for data in DATA)),
              "Not in percent; a higher density and a lower decay (in nats) are better. The backbone is not stated; "
              "here it is MiT-B2."),
        Place("Table 3", "results on CUB and Cars196", runs("cub_crt", "cars_crt")),
        Place("Table 4", "results on SOP and In-Shop", runs("sop_crt", "inshop_crt")),
        Place("Table 5", "backbones, with and without CRT", studies(*(f"crt:backbones-{data}" for data in DATA))),
        Place("Table 6", "components", studies("crt:components-cub")),
        Place("Table 7", "one head or one per prototype", studies("crt:gamma-cub")),
        Place("Table 8", "prototypes of the first branch", studies("crt:first_prototypes-cub")),
        Place("Table 9", "prototypes of both branches", studies("crt:prototypes-cub")),
        Place("Table 10", "shared weights", studies("crt:sharing-cub")),
        Place("Figures 1, 3", "drawings", note=CAPTURE),
        Place("Figure 2", "maps of the correlation with the prototypes", (ANALYSE + "heat_maps",),
              "The authors' images are not known."),
    ),
)  # fmt: skip
DIVA = Paper(
    "DiVA: Diverse Visual Feature Aggregation",
    "Milbich et al., ECCV 2020",
    (
        "Where text and code differ, the code is followed (`configs/recipes/diva.py`); the variants `printed` and "
        "`bn_inception-printed` follow the text.",
        "The results are for the epoch and the weights of the embeddings that are best on the test classes; the "
        "authors' protocol selects both.",
        "With the authors' command for CUB, a user obtained R@1 68.35 instead of 69.2.",
        "Erratum: the gains of 2.1 and 1.2 points in the text of section 4.3 are 2.0 and 0.8 by Table 3.",
    ),
    (
        Place("Table 1", "combinations of tasks", studies("diva:tasks-cub", "diva:tasks-cars", "diva:tasks-sop")),
        Place("Table 2", "results, by backbone and loss",
              studies("diva:backbones-cub", "diva:backbones-cars", "diva:backbones-sop"),
              "The paper heads a column of SOP R@2, but its values are R@10."),
        Place("Table 3", "no decorrelation, separate models", studies("diva:separate-cub"),
              "The data set is not stated; the values fit CUB. Baseline and DiVA are the first and the last row of "
              "Table 1."),
        Place("Figures 1, 4", "self-supervised tasks instead of DaNCE, an ensemble",
              studies("diva:self_supervision-cub", "diva:self_supervision-cars", "diva:self_supervision-sop"),
              "Values are not printed. The left part of Figure 1 repeats Table 1."),
        Place("Figures 2, 3", "drawings", note=CAPTURE),
        Place("Figure 5", "spectra of the embeddings",
              (*studies("diva:separate-cub"), COMPARE.format("runs/OTHER", "spectra")),
              "The second command is for the margin loss alone (baseline) beside DiVA, or for any two runs."),
    ),
)  # fmt: skip
PAPERS = {"mpn": MPN, "mpn_reproduction": RE_MPN, "hist_reproduction": HIST, "crt": CRT, "diva": DIVA}
