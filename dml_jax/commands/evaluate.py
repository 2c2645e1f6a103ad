"""Evaluates the stored embeddings of runs, a model on labelled images, or any embeddings:

    dml-jax evaluate --model=runs/a[,runs/b …] [--weights=1,2] [--output=FILE] [--export=runs/ab]
    dml-jax evaluate --model=lite0 --data=photos/
    dml-jax evaluate --embeddings=embeddings.npy --labels=labels.npy
    dml-jax evaluate --embeddings=gallery.npy --labels=gallery_labels.npy
                               --query_embeddings=queries.npy --query_labels=query_labels.npy
    dml-jax evaluate --engine=ray --embeddings=shop/embeddings.npy --labels=labels.npy
                               --export=neighbors

Several runs are evaluated one by one and combined: their embeddings are concatenated, so the cosine
of two images is the mean of the runs' cosines (Seidenschwarz et al., ICML 2021, sec. 4.4), weighted
by the squares of --weights. The settings of the first run's evaluation are the defaults. --export
writes the embeddings and results.json in the layout of a run. --verify checks that the files of
finished runs are unchanged, that the results follow from the stored embeddings, and that the models
still compute the stored embedding of the probe image.

Images are a folder with one subfolder per class, or the test split of a prepared data set. Files of
embeddings are real numbers [N, D], memory-mapped, so they may be larger than the memory. Labels are
integers or strings [N], or a text file with one class per line; with several classes per row, 0 and
1 [N, C], or a .tsv file with the classes of a row on each line. Without queries, every row searches
all other rows. --rerank adds the metrics after k-reciprocal re-ranking, which loads the embeddings
into memory.

With --engine=ray, the machines of a Ray cluster write the nearest rows of blocks of queries to
--export; repeat the command after an interruption.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dml_jax import files
from dml_jax.commands import cli
from dml_jax.errors import refuse

FILES = {  # options that name a file
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
    "verify": "runs: check their files and results",
    "quiet": "print the table only, no progress",
}
ALWAYS = {"ks", "lone_queries", "quiet", "output"}
IN_MEMORY = {*ALWAYS, "metric", "relation", "protocol", "no_clustering", "rerank"}
OF_MODELS = {*IN_MEMORY, "model", "trust_code", "session"}
USED = {  # the options of each kind of input
    "runs (--model=RUN,RUN)": {*OF_MODELS, "weights", "export", "verify"},
    "images (--model and --data)": {
        *OF_MODELS,
        *("data", "checkpoint", "flip", "scales", "splits", "classes"),
    },
    "files (--embeddings and --labels)": {*IN_MEMORY, *FILES},
    "Ray (--engine=ray)": {
        *ALWAYS,
        *("embeddings", "labels", "query_embeddings", "query_labels"),
        *("export", "engine", "address"),
    },
}
RUNS, IMAGES, FILE_SETS, RAY = USED
EXAMPLE = "--embeddings=embeddings.npy --labels=labels.npy, or --model=lite0 --data=photos/"


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__)
    cli.add_model(flags, required=False, versions=True)
    weights = cli.numbers(float, "positive numbers, e.g. 1,2", lambda weight: 0 < weight < math.inf)
    text = "weights of the runs, e.g. 1,2; default: all 1"
    flags.add_argument("--weights", metavar="W,W,…", type=weights, help=text)
    text = "class folders or a prepared data set, with --model"
    flags.add_argument("--data", metavar="DIRECTORY", help=text)
    for name, text in FILES.items():
        flags.add_argument(f"--{name}", metavar="FILE", help=text)
    cli.add_layout(flags)
    text = "K of Recall@K (default: 1,2,4,8,10,100,1000, as far as possible)"
    counts = cli.numbers(int, "positive whole numbers, e.g. 1,10", lambda number: number > 0)
    flags.add_argument("--ks", metavar="K,K,…", type=counts, default=(), help=text)
    text = "queries without a relevant row; default: miss"
    flags.add_argument("--lone_queries", choices=("miss", "omit"), help=text)
    text = (
        "cosine (default; for runs, theirs), euclidean, or the import path of a function of two "
        "blocks of rows"
    )
    flags.add_argument("--metric", metavar="NAME", default="", help=text)
    text = (
        "import path of a function of two lists of class names: grades of relevance (default: "
        "runs, theirs; else equal classes)"
    )
    flags.add_argument("--relation", metavar="NAME", default="", help=text)
    text = "paper: drop the first neighbour, as authors do"
    flags.add_argument("--protocol", choices=("clean", "paper"), help=text)
    for name, text in SWITCHES.items():
        flags.add_argument(f"--{name}", action="store_true", help=text)
    flags.add_argument("--output", metavar="FILE", help="JSON file to write")
    text = "runs: write embeddings and results.json here; with --engine=ray: the neighbours"
    flags.add_argument("--export", metavar="DIRECTORY", help=text)
    cli.add_engine(flags)
    return flags


def kind_of(options: argparse.Namespace) -> str:
    """The kind of input that the options choose, a key of `USED`."""
    if options.engine == "ray":
        return RAY
    if options.model:
        return IMAGES if options.data else RUNS
    return FILE_SETS


def problems(options: argparse.Namespace, default: Callable[[str], Any]) -> Iterator[str]:
    """Sentences about options that the kind of input does not use, or that need another one."""
    kind, values = kind_of(options), vars(options)
    for key, value in values.items():
        if value != default(key) and key not in USED[kind]:
            kinds = " or ".join(other for other in USED if key in USED[other])
            yield f"--{key}: has no effect on {kind}, only on {kinds}"
    if "embeddings" in USED[kind]:
        missing = (key for key in ("embeddings", "labels") if not values[key])
        yield from (f"--{key}: missing; e.g. {EXAMPLE}" for key in missing)
    if kind == RAY and not options.export:
        yield "--export: missing; give a directory for the neighbours"
    if bool(options.query_embeddings) != bool(options.query_labels):
        yield "--query_labels: give it and --query_embeddings both or neither"
    if options.query_groups and not options.query_embeddings:
        yield "--query_groups: needs --query_embeddings; without queries, give --groups only"
    if options.query_embeddings and bool(options.groups) != bool(options.query_groups):
        yield "--groups: with queries, give it and --query_groups both or neither"
    if options.metric not in ("", "cosine", "euclidean") and "." not in options.metric:
        yield "--metric: must be cosine, euclidean or the import path of a function"
    if options.relation and "." not in options.relation:
        yield "--relation: must be the import path of a function"
    if options.rerank and options.metric == "euclidean":
        yield "--metric: --rerank needs cosines, or a function"
    if options.rerank or options.protocol == "paper":
        keys = [key for key in ("session", "groups", "relation") if values[key]]
        yield from (f"--{key}: not with --rerank or --protocol=paper" for key in keys)
    if options.verify:
        names = "protocol", "lone_queries", "metric", "relation", "session"
        keys = [key for key in names if values[key]]
        yield from (f"--{key}: not with --verify: the run's settings apply" for key in keys)


def execute(arguments: list[str]) -> None:
    """Reads the command line, evaluates, prints the table and writes the output."""
    flags = parser()
    options = flags.read_plain(arguments)
    refuse(problems(options, flags.get_default))
    cli.check_engine(options)
    output = cli.file_to_write("--output", options.output) if options.output else None
    export = files.expand_path("--export", options.export) if options.export else None
    from dml_jax.analysis import labelled_embeddings
    from dml_jax.analysis.labelled_embeddings import Settings
    from dml_jax.commands import jax_setup
    from dml_jax.config import modules

    for key, path in (("--metric", options.metric), ("--relation", options.relation)):
        if "." in path:
            sys.path.insert(0, "")
            modules.import_module(key, path, path.rpartition(".")[0])
            modules.function(key, path)
    names = ("metric", "protocol", "lone_queries", "rerank", "session", "relation")
    settings = Settings(
        tuple(dict.fromkeys(options.ks)),
        **{name: getattr(options, name) for name in (*names, "quiet")},
        clustering=not options.no_clustering,
    )
    paths = {key: value for key in FILES if (value := getattr(options, key))}
    started = time.monotonic()
    kind = kind_of(options)
    if kind == RAY:
        evaluate = labelled_embeddings.evaluate_blocks
        results = evaluate(paths, export or Path(), options.address, settings)
    elif kind == IMAGES:
        model, splits = jax_setup.load_on_images(options)
        results = labelled_embeddings.evaluate_images(model, splits, settings)
        results |= {"model": options.model, "data": options.data}
    elif kind == RUNS:
        results = labelled_embeddings.evaluate_runs(
            options.model,
            settings,
            weights=options.weights,
            export=export,
            verify=options.verify,
            trust_code=options.trust_code,
        )
    else:
        results = labelled_embeddings.evaluate_files(paths, settings) | paths
    results["seconds"] = round(time.monotonic() - started, 3)
    if output is not None:
        files.write_json(output, results)
    labelled_embeddings.print_results(results, output)
