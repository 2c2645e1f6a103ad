"""The options of `dml-jax evaluate`, and the rules for their combination."""

import argparse
import math
from collections.abc import Iterator

from dml_jax.commands import cli

NOT_BY_RAY = (
    *("model", "groups", "metric", "protocol", "relation"),
    *("no_clustering", "rerank"),
)
NOT_GIVEN = (None, "", (), False, "cosine", "clean")
FOR_IMAGES = {"splits": "auto", "flip": False, "scales": (1.0,), "checkpoint": "reported"}
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


def parser(description: str | None) -> cli.Parser:
    flags = cli.Parser(description)
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
    text = "cosine (default; for runs, theirs), euclidean, or the import path of a function of two "
    flags.add_argument("--metric", metavar="NAME", default="", help=f"{text}blocks of rows")
    text = "import path of a function of two lists of class names: grades of relevance (default: "
    text += "runs, theirs; else equal classes)"
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


def problems(options: argparse.Namespace) -> Iterator[str]:
    """Sentences about options that need another one, or have no effect beside the others."""
    given = vars(options)
    on_ray, on_images = options.engine == "ray", options.model and options.data
    of_runs = options.model and not options.data

    def each(keys: tuple[str, ...], message: str) -> Iterator[str]:
        return (f"--{key}: {message}" for key in keys if given[key] not in NOT_GIVEN)

    def only_if(condition: object, problem: str) -> Iterator[str]:
        return iter([problem] if condition else [])

    if options.model:
        yield from each(tuple(FILES), "is not used with --model")
    else:
        example = "--embeddings=embeddings.npy --labels=labels.npy, or --model=lite0 --data=photos/"
        for key in ("embeddings", "labels"):
            yield from only_if(not given[key], f"--{key}: missing; e.g. {example}")
        yield from each(("data",), "needs --model")
    if not of_runs:
        yield from each(("weights", "verify"), "needs runs, --model=RUN,RUN")
        if not on_ray:
            yield from each(("export",), "needs runs, --model=RUN,RUN, or --engine=ray")
    if on_ray:
        missing = "--export: missing; give a directory for the neighbours"
        yield from only_if(not options.export, missing)
        yield from each(NOT_BY_RAY, "not with --engine=ray")
    if not on_images:
        for key, default in FOR_IMAGES.items():
            yield from only_if(given[key] != default, f"--{key}: needs --model and --data")
    if not options.query_embeddings:
        message = "needs --query_embeddings; without queries, give --groups only"
        yield from each(("query_groups",), message)
    elif not options.query_groups:
        yield from each(("groups",), "with queries, give --query_groups too")
    one = bool(options.query_embeddings) != bool(options.query_labels)
    yield from only_if(one, "--query_labels: give it and --query_embeddings both or neither")
    metric = options.metric or "cosine"
    named = metric in ("cosine", "euclidean") or "." in metric
    rule = "must be cosine, euclidean or the import path of a function"
    yield from only_if(not named, f"--metric: {rule}")
    named = "." in (options.relation or ".")
    yield from only_if(not named, "--relation: must be the import path of a function")
    if options.rerank:
        euclidean = metric == "euclidean"
        yield from only_if(euclidean, "--metric: --rerank needs cosines, or a function")
    if not options.model:
        yield from each(("session",), "needs --model; for files, give --groups")
    if options.rerank or options.protocol == "paper":
        message = "not with --rerank or --protocol=paper"
        yield from each(("session", "groups", "relation"), message)
    if options.verify:
        message = "not with --verify: the run's settings apply"
        for key in ("protocol", "lone_queries", "metric", "relation", "session"):
            yield from only_if(given[key], f"--{key}: {message}")
