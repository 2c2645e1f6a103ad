"""Evaluates a model on labelled images, or the embeddings of any model:

    dml-jax evaluate --model=lite0 --data=photos/ [--output=results.json]
    dml-jax evaluate --embeddings=embeddings.npy --labels=labels.npy [--output=results.json]
    dml-jax evaluate --embeddings=gallery.npy --labels=gallery_labels.npy
                               --query_embeddings=queries.npy --query_labels=query_labels.npy

Images are a folder with one subfolder per class, or the test split of a prepared data set. Embeddings are real numbers
[N, D], memory-mapped, so they may be larger than the memory. Labels are integers or strings [N], or a text file with
one class per line; with several classes per row, 0 and 1 [N, C], or a .tsv file with the classes of a row on each line.
Without queries, every row searches all other rows. --rerank and --expand add the metrics after k-reciprocal re-ranking
and query expansion; both load the embeddings into memory. So does --storage, which adds a table of Recall@1 against
bytes per image, with PCA whitening if --training has the embeddings of other images.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console as Terminal
from rich.table import Table

import dml_jax
from dml_jax import files
from dml_jax.commands import cli, model_options, relevance_options, rerank_options, runtime, storage_options
from dml_jax.console import Console
from dml_jax.errors import ConfigError, DataError, counted, printable
from dml_jax.evaluation import check_inputs, metric_table, protocol, relevance, verification
from dml_jax.evaluation.verification import FALSE_MATCH_RATES, PAIRED
from dml_jax.inference import labelled

KS = (1, 2, 4, 8, 10, 100, 1000)
SOURCES = ("model", "data", "embeddings", "labels", "query_embeddings", "query_labels")  # stated in the results
MAX_RESTARTS = 10_000


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    model_options.add(flags)
    model_options.add_versions(flags)
    flags.add_argument("--data", metavar="DIRECTORY", help="class folders or a prepared data set, with --model")
    flags.add_argument("--embeddings", metavar="FILE", help=".npy, [N, D]")
    flags.add_argument("--labels", metavar="FILE", help=".npy, [N] integers or strings, or text, one class per line")
    flags.add_argument("--query_embeddings", metavar="FILE", help="queries that search the embeddings")
    flags.add_argument("--query_labels", metavar="FILE", help="labels of the queries")
    flags.add_argument(
        "--ks", metavar="K,K,…", help=f"K of Recall@K (default: {','.join(map(str, KS))}, as far as possible)"
    )
    flags.add_argument("--prefixes", metavar="D,D,…", help="also evaluate the first D columns alone")
    flags.add_argument(
        "--lone_queries", choices=("miss", "omit"), default="miss",
        help="without a relevant row: miss (default) of Recall@K and MRR, or omit",
    )  # fmt: skip
    flags.add_argument("--metric", choices=("cosine", "euclidean"), default="cosine", help="default: cosine")
    flags.add_argument(
        "--protocol", choices=("clean", "paper"), default="clean",
        help="clean (default), or paper: drop the first neighbour, as the authors' code",
    )  # fmt: skip
    flags.add_argument(
        "--nmi_average", choices=("arithmetic", "geometric"), default="arithmetic",
        help="arithmetic (default), or geometric as HIST's code",
    )  # fmt: skip
    flags.add_argument("--no_clustering", action="store_true", help="skip k-means and NMI")
    flags.add_argument("--restarts", type=int, help="restarts of k-means (default: 10; 1 above 1000 classes)")
    flags.add_argument("--seed", type=int, default=0, help="seed of k-means (default: 0)")
    relevance_options.add_to(flags)
    rerank_options.add_to(flags)
    storage_options.add_to(flags)
    flags.add_argument(
        "--full_ranking", action="store_true", help="add MAP over the whole ranking and precision@K; slower"
    )
    flags.add_argument(
        "--verification", action="store_true", help="add error rates of pairs, by cosine: EER, FNMR at FMR"
    )
    flags.add_argument("--geometry", action="store_true", help="add density, spectral decay, uniformity, alignment")
    flags.add_argument("--memory", type=int, metavar="MIB", help="device memory to use at most")
    flags.add_argument("--output", metavar="FILE", help="JSON file to write")
    flags.add_argument("--quiet", action="store_true", help="print the table only, no progress")
    return flags


def check_source(options: argparse.Namespace) -> None:
    """Raises ConfigError unless the options give either a model and images, or embeddings and labels."""
    if not options.model:
        for key in ("embeddings", "labels"):
            if not getattr(options, key) and not (key == "labels" and options.relevant):
                raise ConfigError(
                    f"--{key}: missing; e.g. --embeddings=embeddings.npy --labels=labels.npy, or --model=lite0 "
                    "--data=photos/"
                )
    of_files = ("embeddings", "labels", "query_embeddings", "query_labels", *relevance_options.INPUTS, "categories")
    for key in of_files if options.model else ("data",):
        if getattr(options, key):
            raise ConfigError(f"--{key}: {'is not used with' if options.model else 'needs'} --model")
    if not options.model and (options.flip or options.scales != "1"):
        raise ConfigError(f"--{'flip' if options.flip else 'scales'}: needs --model and --data")
    if options.model and not options.data:
        raise ConfigError("--data: missing; give a folder with one subfolder per class, or a prepared data set")


def parse_numbers(key: str, text: str | None) -> tuple[int, ...] | None:
    """The positive integers given as an option, without duplicates."""
    if text is None:
        return None
    rule = f"positive integers separated by commas, e.g. --{key}=1,10,100"
    return tuple(dict.fromkeys(cli.numbers(f"--{key}", text, int, rule, lambda number: number > 0)))


def execute(arguments: list[str]) -> None:
    """Reads the command line, evaluates, prints the table and writes the output."""
    options = parser().read_plain(arguments, "dml-jax evaluate")
    check_source(options)
    relevance_options.check(options)
    if bool(options.query_embeddings) != bool(options.query_labels) and not options.relevant:
        raise ConfigError("--query_embeddings and --query_labels: give both or neither")
    if options.verification and options.query_embeddings:
        raise ConfigError("--verification: compares the pairs of one set; leave out the queries")
    for key in ("restarts", "memory"):
        if getattr(options, key) is not None and getattr(options, key) < 1:
            raise ConfigError(f"--{key}={getattr(options, key)}: must be positive")
    if (options.restarts or 0) > MAX_RESTARTS:
        raise ConfigError(f"--restarts={options.restarts}: must be at most {MAX_RESTARTS}")
    if not 0 <= options.seed < 1 << 31:
        raise ConfigError(f"--seed={options.seed}: must be in 0..{(1 << 31) - 1}")
    rerank_options.check(options)
    storage_options.check(options)
    ks = parse_numbers("ks", options.ks)
    options.prefixes = parse_numbers("prefixes", options.prefixes) or ()
    output = cli.file_to_write("--output", options.output) if options.output else None

    started = time.monotonic()
    results = evaluate(options, ks)
    results["seconds"] = round(time.monotonic() - started, 3)
    if output is not None:
        files.write_json(output, results)
    print_table(results, output)


def evaluate(options: argparse.Namespace, ks: tuple[int, ...] | None) -> dict[str, Any]:
    """All requested metrics, the protocol, and the names and sizes of the inputs, to which the options must fit."""
    queries, labels, gallery, gallery_labels = _embedded(options) if options.model else _read(options)
    if gallery is None and len(queries) < 2:
        raise DataError(f"--{'data' if options.model else 'embeddings'}: has one row; give at least two, or queries")
    if gallery is not None and options.verification:
        raise ConfigError("--verification: compares the pairs of one set, but the queries search a separate gallery")
    candidates = len(queries) - 1 if gallery is None else len(gallery)
    if ks is not None and max(ks) > candidates:
        raise ConfigError(f"--ks={options.ks}: there are {candidates} candidates; every K must be at most that")
    if max(options.prefixes, default=0) > queries.shape[1]:
        raise ConfigError(f"--prefixes: {max(options.prefixes)}, but the embeddings have {queries.shape[1]} columns")
    storage_options.check_size(options, queries.shape[1])
    rerank_options.check_sizes(options, len(queries), None if gallery is None else len(gallery))
    relevance_options.check_labels(options, labels)
    judgements = relevance_options.load(options)
    classes = 0 if labels is None else len(np.unique(labels if isinstance(labels, np.ndarray) else labels.values))

    settings: dict[str, Any] = {
        "cluster": not options.no_clustering,
        "seed": options.seed,
        "restarts": options.restarts,
        "average": options.nmi_average,
        "metric": options.metric,
        "lone_queries": options.lone_queries,
    }
    with Console(quiet=options.quiet) as console:
        results = protocol.evaluate(
            queries,
            labels,
            ks=ks or KS,
            protocol=options.protocol,
            geometry=options.geometry,
            full_ranking=options.full_ranking,
            gallery=gallery,
            gallery_labels=gallery_labels,
            judgements=judgements,
            prefixes=options.prefixes,
            memory=None if options.memory is None else options.memory << 20,
            announce=None if options.quiet else console.print,
            progress=_progress(console, "retrieval"),
            cluster_progress=_progress(console, "k-means, maximum iterations"),
            **settings,
        )
        if options.verification:
            results |= verification.summary(queries, labels)
        results |= rerank_options.evaluate(options, queries, labels, gallery, gallery_labels, ks or KS, console)
        results |= storage_options.evaluate(options, queries, labels, gallery, gallery_labels)
    results["protocol"] = protocol.description(
        options.protocol, classes=classes, gallery=gallery is not None, groups="groups" in judgements, **settings
    )
    results |= {"rows": len(queries), "columns": queries.shape[1], "classes": classes}
    inputs = (*SOURCES, *relevance_options.INPUTS)
    results |= {key: str(getattr(options, key)) for key in inputs if getattr(options, key)}
    if gallery is not None:
        results["gallery_rows"] = len(gallery)
    return results


def _embedded(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Embeddings and labels of the labelled images, and those of their gallery if they have one."""
    versions = model_options.versions(options)
    path = files.expand_path("--data", options.data)
    runtime.enable_compilation_cache()
    model = dml_jax.load(options.model, options.checkpoint, trust_code=options.trust_code, **versions)
    split = labelled.load(path, model.config.data)
    if not options.quiet:
        print(f"embedding {counted(len(split.labels), 'image')} of {counted(len(split.classes), 'class')}", flush=True)
    queries, gallery = model.embed_split(split), split.gallery
    if gallery is None:
        return queries, split.labels, None, None
    return queries, split.labels, model.embed_split(gallery), gallery.labels


def _read(options: argparse.Namespace) -> tuple[np.ndarray, Any, np.ndarray | None, Any]:
    """Embeddings and labels of the queries, and those of the gallery if it differs, from files."""
    rows, labels = _load(options, "embeddings", "labels")
    if not options.query_embeddings:
        return rows, labels, None, None
    return *_load(options, "query_embeddings", "query_labels"), rows, labels


def _load(options: argparse.Namespace, embeddings: str, labels: str) -> tuple[np.ndarray, Any]:
    """Embeddings [N, D], memory-mapped, and labels [N] or `relevance.Classes`, from the files that two options name."""
    path = files.expand_path(f"--{embeddings}", getattr(options, embeddings))
    points = check_inputs.embeddings(check_inputs.load(path, name=f"--{embeddings}"), name=f"--{embeddings}")
    if options.relevant:
        return points, None
    path = files.expand_path(f"--{labels}", getattr(options, labels))
    classes = relevance_options.load_classes(path, f"--{labels}")
    return points, relevance.classes(classes, len(points), name=f"--{labels}", of=f"--{embeddings}")


def _progress(console: Console, title: str) -> Callable[[int, int], None]:
    """A callback (done, total) that shows a progress bar; a new total begins a new bar."""
    current = 0

    def progress(done: int, total: int) -> None:
        nonlocal current
        if current != total or done == 1:  # begin after the first part, whose time includes the compilation
            console.start_progress(title, total, done)
            current = total
        else:
            console.update_progress(done, f"{done / total:.0%}")

    return progress


def print_table(results: dict[str, Any], output: Path | None) -> None:
    """Prints one row per metric and one column per ranking, then the protocols."""
    rankings = {"plain": results}
    rankings |= {f"first {length}": found for length, found in results.get("prefixes", {}).items()}
    rankings |= {name: results[name] for name in rerank_options.NAMES if name in results}
    table = Table(box=box.SIMPLE, title=f"{results['rows']:,} rows, {results['classes']:,} classes; metrics in %")
    table.add_column("metric")
    for name in rankings:
        table.add_column(name if len(rankings) > 1 else "value ± standard error", justify="right")
    for entry in metric_table.columns(results):
        heading = entry.heading if entry.percent else f"{entry.heading} (not in %)"
        table.add_row(heading, *(metric_table.cell(ranking, entry, digits=2) for ranking in rankings.values()))
    console = Terminal(highlight=False, soft_wrap=True)
    console.print(table)
    if "categories" in results:
        relevance_options.print_categories(results)
    if results["lone_queries"]:
        console.print(f"{results['lone_queries']:,} queries have no relevant row")
    if "equal_error_rate" in results:
        rates = "  ".join(f"FNMR@FMR={rate:g} {results[f'fnmr@{rate}']:.2%}" for rate in FALSE_MATCH_RATES)
        error = f"{results['equal_error_rate']:.2%}"
        console.print(f"pairs of up to {PAIRED:,} rows by their cosine: EER {error}  {rates}", markup=False)
    if "storage" in results:
        storage_options.print_storage(results["storage"])
    for ranking in rankings.values():
        if "protocol" in ranking:
            console.print(ranking["protocol"], markup=False)
    written = f"; written to {printable(str(output))}" if output else ""
    console.print(f"{results['seconds']:.1f} s{written}", markup=False)
