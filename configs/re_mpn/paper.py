"""Tables and figures of the reproduction of MPN ([Re] Learning Intra-Batch Connections, MLRC)."""

from configs.papers import DATA, FIGURES, Paper, Place, studies

AUTHORS_WEIGHTS = (
    "The authors' weights: `dml-jax convert --weights=BACKBONE.pth,NETWORK.pth "
    "--output=weights/cub_mpn`, "
    "then "
    "`python -m dml_jax.main --config=cub_mpn --mode=evaluate "
    "--config.init_from=weights/cub_mpn`, with "
    "`--config.evaluation.refine=reciprocal` for Table 3."
)
PAPER = Paper(
    "MPN: its reproduction",
    "[Re] Learning Intra-Batch Connections, MLRC",
    (
        "How the standard errors (±) were computed is not stated. For recalls they equal √(p(1 − "
        "p)/n) to about 0.005 "
        "points, but for R@10 of the reproduction on SOP: 0.10 is printed, and the formula gives "
        "0.116.",
    ),
    (
        Place(
            "Table 1",
            "settings, and the range of the authors' search",
            tuple(
                f"python -m benchmarks.papers.search_re_mpn {data} --protocol=paper"
                for data in DATA
            ),
            "The settings come from `*_mpn`, and the commands are the search. On CUB the authors' "
            "code draws a new "
            "number of classes per batch in every epoch; `cub_mpn:printed` always has 6 classes "
            "of 9 images. The "
            "weight decay on In-Shop is misprinted as 1.55e-7.",
        ),
        Place(
            "Table 2",
            "the paper, the authors' weights evaluated again, and the reproduction",
            studies("mpn:re_table2-all"),
            AUTHORS_WEIGHTS,
        ),
        Place(
            "Table 3",
            "message passing at test time",
            studies("mpn:re_table3-cub", "mpn:re_table3-cars"),
            AUTHORS_WEIGHTS,
        ),
        Place(
            "Figure 1",
            "divergence of the attention from uniform, by head",
            (FIGURES.format("mpn") + " --what attention",),
            "For a run of `cub_mpn` with `--config.train.keep_every=100`.",
        ),
        Place(
            "Figure 2",
            "attention of one node over the training",
            (FIGURES.format("mpn") + " --what attention --batch=0 --node=10",),
            "For the same run; one panel per head.",
        ),
    ),
)
