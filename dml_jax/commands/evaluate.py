"""Evaluates the stored embeddings of runs, a model on labelled images, or the embeddings of any
model:

    dml-jax evaluate --model=runs/a[,runs/b …] [--weights=1,2] [--output=results.json]
    [--export=runs/ab] dml-jax evaluate --model=lite0 --data=photos/
    dml-jax evaluate --embeddings=embeddings.npy --labels=labels.npy
    dml-jax evaluate --embeddings=gallery.npy --labels=gallery_labels.npy
                               --query_embeddings=queries.npy --query_labels=query_labels.npy
    dml-jax evaluate --engine=ray --embeddings=shop.parquet --labels=labels.npy --export=neighbors

Several runs are evaluated one by one and combined. The combination concatenates the unit rows of
the runs and divides by the square root of their number, so the cosine of two images is the mean of
the runs' cosines (Seidenschwarz et al., ICML 2021, sec. 4.4); with weights w, the mean weighted by
w². The settings of the first run's evaluation are the defaults. --export writes the embeddings and
results.json in the layout of a run. --verify checks that all files of finished runs are as they
were written, and that the results follow from the stored embeddings.

Images are a folder with one subfolder per class, or the test split of a prepared data set. Files of
embeddings are real numbers [N, D], memory-mapped, so they may be larger than the memory. Labels are
integers or strings [N], or a text file with one class per line; with several classes per row, 0 and
1 [N, C], or a .tsv file with the classes of a row on each line. Without queries, every row searches
all other rows. --rerank adds the metrics after k-reciprocal re-ranking, which loads the embeddings
into memory.

With --engine=ray, embeddings are directories of Parquet files as dml-jax embed writes them, of any
size, with one label for each usable image. The machines of a Ray cluster write the nearest rows of
blocks of queries into --export, and the same command continues after an interruption.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator

from dml_jax.commands import cli

KS = (1, 2, 4, 8, 10, 100, 1000)
NOT_BY_BLOCKS = (
    "model", "groups", "metric", "protocol", "no_clustering", "rerank", "full_ranking",
)  # fmt: skip
NOT_GIVEN = (None, "", (), False, "cosine", "clean")
FILES = {  # options that name one
    "embeddings": ".npy, [N, D]",
    "labels": ".npy, [N] integers or strings, or text, one class per line",
    "query_embeddings": "queries that search the embeddings",
    "query_labels": "labels of the queries",
    "groups": "e.g. cameras: leave out relevant rows of the query's group",
    "query_groups": "groups of the queries",
}
SWITCHES = {
    "no_clustering": "skip k-means and NMI",
    "rerank": "add k-reciprocal re-ranking (Zhong et al., CVPR 2017)",
    "full_ranking": "add MAP over the whole ranking and precision@K; slower",
    "verify": "of runs: check their files and results",
    "quiet": "print the table only, no progress",
}


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__)
    cli.add_model(flags, required=False, versions=True)
    weights = cli.numbers(float, "positive numbers, e.g. 1,2", lambda weight: 0 < weight < math.inf)
    flags.add_argument(
        "--weights", metavar="W,W,…", type=weights, help="of the runs, e.g. 1,2; default: all 1"
    )
    flags.add_argument(
        "--data", metavar="DIRECTORY", help="class folders or a prepared data set, with --model"
    )
    for name, text in FILES.items():
        flags.add_argument(f"--{name}", metavar="FILE", help=text)
    flags.add_argument(
        "--session", metavar="date|folder|REGEX|COLUMN", default="", help=cli.SESSION
    )
    flags.add_argument(
        "--splits", default="auto", metavar="auto|classes|none|A:B:C", help=cli.SPLITS
    )
    ks = f"K of Recall@K (default: {','.join(map(str, KS))}, as far as possible)"
    counts = cli.numbers(int, "positive whole numbers, e.g. 1,10", lambda number: number > 0)
    flags.add_argument("--ks", metavar="K,K,…", type=counts, default=(), help=ks)
    flags.add_argument(
        "--lone_queries", choices=("miss", "omit"), help="without a relevant row; default: miss"
    )
    metrics = (
        "cosine (default; of runs, theirs), euclidean, or the import path of a function of two "
        "blocks of rows"
    )
    flags.add_argument("--metric", metavar="NAME", help=metrics)
    flags.add_argument(
        "--protocol",
        choices=("clean", "paper"),
        help="paper: drop the first neighbour, as authors do",
    )
    for name, text in SWITCHES.items():
        flags.add_argument(f"--{name}", action="store_true", help=text)
    flags.add_argument("--output", metavar="FILE", help="JSON file to write")
    export = "of runs: write embeddings and results.json here; with --engine=ray: the neighbours"
    flags.add_argument("--export", metavar="DIRECTORY", help=export)
    cli.add_engine(flags)
    return flags


def problems(options: argparse.Namespace) -> Iterator[str]:
    """Sentences about options that miss another one, or have no effect beside the others."""
    on_ray = options.engine == "ray"
    of_runs, on_images = options.model and not options.data, options.model and options.data
    missing = (
        "missing; e.g. --embeddings=embeddings.npy --labels=labels.npy, or --model=lite0 "
        "--data=photos/"
    )
    for key, wrong, message in (
        *((key, options.model and getattr(options, key), "is not used with --model") for key in FILES),  # noqa: E501
        *((key, not (options.model or getattr(options, key)), missing) for key in ("embeddings", "labels")),  # noqa: E501
        ("data", options.data and not options.model, "needs --model"),
        *((key, getattr(options, key) and not of_runs, "needs runs, --model=RUN,RUN") for key in ("weights", "verify")),  # noqa: E501
        ("export", options.export and not (of_runs or on_ray), "needs runs, --model=RUN,RUN, or "
                                                               "--engine=ray"),
        ("export", on_ray and not options.export, "missing; give a directory for the neighbours"),
        *((key, on_ray and getattr(options, key) not in NOT_GIVEN, "not with --engine=ray") for key in NOT_BY_BLOCKS),  # noqa: E501
        *((key, getattr(options, key) != default and not on_images, "needs --model and --data")
          for key, default in (("splits", "auto"), ("flip", False), ("scales", (1.0,)), ("checkpoint", "reported"))),  # noqa: E501
        ("query_groups", options.query_groups and not options.query_embeddings,
         "needs --query_embeddings; without queries, give --groups only"),
        ("groups", options.groups and options.query_embeddings and not options.query_groups,
         "with queries, give --query_groups too"),
        ("query_labels", bool(options.query_embeddings) != bool(options.query_labels),
         "give it and --query_embeddings both or neither"),
        ("metric", options.metric not in (None, "cosine", "euclidean") and "." not in options.metric,  # noqa: E501
         "must be cosine, euclidean or the import path of a function"),
        ("metric", options.rerank and options.metric == "euclidean", "--rerank needs cosines, or a "
                                                                     "function"),
        ("session", options.session and not options.model, "needs --model; for files, give "
                                                           "--groups"),
        ("session", options.session and (options.rerank or options.protocol == "paper"),
         "not with --rerank or --protocol=paper"),
        ("groups", options.groups and (options.rerank or options.protocol == "paper"),
         "not with --rerank or --protocol=paper"),
        *((key, options.verify and getattr(options, key) is not None, "not with --verify: the "
                                                                      "run's settings "
                                                                      "apply")
          for key in ("protocol", "lone_queries")),
    ):  # fmt: skip
        if wrong:
            yield f"--{key}: {message}"


def execute(arguments: list[str]) -> None:
    """Reads the command line, evaluates, prints the table and writes the output."""
    options = parser().read_plain(arguments)
    cli.refuse(problems(options))
    cli.check_engine(options)
    output = cli.file_to_write("--output", options.output) if options.output else None
    options.ks = tuple(dict.fromkeys(options.ks))
    from dml_jax import files
    from dml_jax.commands import evaluate_results
    from dml_jax.config import modules

    if "." in (options.metric or ""):
        sys.path.insert(0, "")
        modules.import_module("--metric", options.metric, options.metric.rpartition(".")[0])
        modules.function("--metric", options.metric)
    started = time.monotonic()
    if options.engine == "ray":
        results = evaluate_results.by_blocks(options)
    else:
        of_runs = options.model and not options.data
        results = (
            evaluate_results.of_runs(options) if of_runs else evaluate_results.of_rows(options)
        )
    results["seconds"] = round(time.monotonic() - started, 3)
    if output is not None:
        files.write_json(output, results)
    evaluate_results.print_table(results, output)
