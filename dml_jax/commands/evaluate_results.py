"""The embeddings that `dml-jax evaluate` compares, from files, images or runs, their metrics and
the table."""

import argparse
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax import files, manifest
from dml_jax.class_names import near_equal, normalised
from dml_jax.commands import cli, jax_setup
from dml_jax.commands.evaluate import FILES, KS
from dml_jax.config import modules
from dml_jax.config.fields import validate
from dml_jax.config.sections import Evaluation
from dml_jax.console import Console
from dml_jax.data import sessions
from dml_jax.data.split import Split, unread
from dml_jax.errors import DataError, counted, printable
from dml_jax.evaluation import (
    metric_table,
    metrics,
    open_set,
    protocol,
    reranking,
    user_distances,
    validation,
)
from dml_jax.export import embedding_files
from dml_jax.export.embedding_files import Exported
from dml_jax.inference import large_search
from dml_jax.inference.large_search import Table as Parts
from dml_jax.lab import tables
from dml_jax.lab.tables import Table
from dml_jax.train.records import workdir

EXPORTED = {"embeddings", "queries.npz", "results.json", manifest.NAME}
TOLERANCE = 1e-3  # of metrics that are computed again, on a machine that may round differently
SHORT, LONGEST = (
    100,
    1000,
)  # the largest K with --engine=ray unless --ks is given, and rows of its lists
LARGEST_RERANKED_K = 100  # unless --ks is given: larger K need longer re-ranked lists


@dataclass
class Source:
    """Embeddings of the queries ("test") and of the "gallery" that they search; without one they
    search each other."""

    rows: Mapping[str, np.ndarray]  # [N, D]
    labels: Mapping[str, Any]  # [N] or `check_inputs.Classes`
    groups: dict[
        str, Any
    ]  # `groups` and `gallery_groups` of `metrics.retrieval`; empty if there are none


def combine(embeddings: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Unit rows of k models, each [N, D_i], weighted, as unit rows [N, D_1 + … + D_k]."""
    norm = math.hypot(*weights)
    return np.concatenate(
        [
            rows * np.float32(weight / norm)
            for rows, weight in zip(embeddings, weights, strict=True)
        ],
        axis=1,
    )


def stored(model: str) -> dict[Path, dict[str, Exported]]:
    """The embeddings of the runs that --model names, by run and split: "test" and, if there is one,
    "gallery".

    Raises UserError unless all runs embedded the same images.
    """
    names = [model] if Path(model).is_dir() else model.split(",")
    runs = [files.expand_path("--model", name) for name in names]
    for run in runs:
        is_run = (run / "config.json").is_file()
        cli.require(
            is_run,
            f"--model={run}: is not the work directory of a run; to embed images, give --data",
        )
    splits = ["test"] + ["gallery"] * any((run / "embeddings" / "gallery").exists() for run in runs)
    found = {
        run: {split: embedding_files.read(run / "embeddings" / split) for split in splits}
        for run in runs
    }
    for run, split in itertools.product(runs, splits):
        first, part = found[runs[0]][split], found[run][split]
        if first.labels is None or part.labels is None:
            raise DataError(
                f"{run}: holds no labels.npy; embeddings cannot be evaluated without labels"
            )
        same = first.ids == part.ids and np.array_equal(first.labels, part.labels)
        cli.require(
            same,
            f"{runs[0]} and {run}: hold different images or labels; give runs of the same images",
        )
    return found


def session_groups(session: str, exported: dict[str, Exported]) -> dict[str, Any]:
    """The sessions of stored embeddings, from the column of the run's `data.session` or as
    --session says."""
    splits: dict[str, Split] = {}
    for name, part in exported.items():
        split = Split(np.zeros(len(part.ids)), part.ids, unread, (), metadata=part.metadata)
        splits[name] = sessions.added(split, session) if session else split
    return sessions.groups(splits)


def of_images(options: argparse.Namespace) -> Source:
    """Embeds labelled images with a model."""
    model, splits = jax_setup.load_on_images(options)
    count, classes = len(splits["test"].labels), len(splits["test"].classes)
    if not options.quiet:
        print(f"embedding {counted(count, 'image')} of {counted(classes, 'class')}", flush=True)
    rows = {name: model.embed_split(split) for name, split in splits.items()}
    return Source(
        rows, {name: split.labels for name, split in splits.items()}, sessions.groups(splits)
    )


def of_files(options: argparse.Namespace) -> Source:
    """Opens the files that the options name, memory-mapped."""
    rows, labels = _rows_and_labels(options, "embeddings", "labels")
    groups = {
        key: _classes(options, key) for key in ("groups", "query_groups") if getattr(options, key)
    }
    if not options.query_embeddings:
        _warn_of_names(labels)
        return Source({"test": rows}, {"test": labels}, groups)
    queries, query_labels = _rows_and_labels(options, "query_embeddings", "query_labels")
    _warn_of_names(query_labels, labels)
    groups = (
        {"groups": groups["query_groups"], "gallery_groups": groups["groups"]} if groups else {}
    )
    return Source(
        {"test": queries, "gallery": rows}, {"test": query_labels, "gallery": labels}, groups
    )


def _parts_and_labels(
    options: argparse.Namespace, embeddings: str, labels: str
) -> tuple[Parts, np.ndarray]:
    rows = large_search.table(getattr(options, embeddings), f"--{embeddings}")
    given = np.asarray(_classes(options, labels))
    return rows, validation.labels(given, sum(rows.rows), name=f"--{labels}", of=f"--{embeddings}")


def _rows_and_labels(
    options: argparse.Namespace, embeddings: str, labels: str
) -> tuple[np.ndarray, Any]:
    path, name = (
        files.expand_path(f"--{embeddings}", getattr(options, embeddings)),
        f"--{embeddings}",
    )
    points = validation.embeddings(validation.load(path, name=name), name=name)
    return points, validation.classes(
        _classes(options, labels), len(points), name=f"--{labels}", of=name
    )


def _warn_of_names(*labels: Any) -> None:
    """Warns of near-equal names of classes, which are different classes."""
    values = [each.values if isinstance(each, validation.Classes) else each for each in labels]
    if alike := near_equal(
        str(name) for each in values if each.dtype.kind == "U" for name in np.unique(each)
    ):
        shown = ", ".join(" and ".join(map(repr, group)) for group in alike[:3])
        Console().warn(
            "--labels: near-equal names count as different classes: "
            f"{printable(shown)}{f' and {len(alike) - 3} more' if len(alike) > 3 else ''}"
        )


def _classes(options: argparse.Namespace, key: str) -> np.ndarray | list[list[str]]:
    """Classes from a `.npy` file, a text file with one per line, or a `.tsv` file with any number
    per line, by tabs."""
    path, name = files.expand_path(f"--{key}", getattr(options, key)), f"--{key}"
    if path.suffix == ".npy":
        given = validation.load(path, name=name)
        return (
            np.array([normalised(label) for label in given.tolist()])
            if given.dtype.kind == "U"
            else given
        )
    if path.suffix == ".tsv":
        words = (
            [normalised(word) for word in line.split("\t")]
            for line in validation.text_lines(path, name=name)
        )
        return [[word for word in line if word] for line in words]
    return validation.read_lines(path, name=name)


def distance(name: str) -> user_distances.Metric:
    """A distance by its name, or by the import path of a function whose module has been
    imported."""
    return modules.function("distance", name) if "." in name else name  # type: ignore[return-value]


def of_rows(options: argparse.Namespace) -> dict[str, Any]:
    """All requested metrics of a model on images, or of embeddings from files."""
    source = of_images(options) if options.model else of_files(options)
    results = evaluate(options, source, Evaluation(ks=KS))
    return results | {
        key: str(getattr(options, key))
        for key in ("model", "data", *FILES)
        if getattr(options, key)
    }


def by_blocks(options: argparse.Namespace) -> dict[str, Any]:
    """Recall@K, MRR, R-precision and MAP@R of Parquet files, by the machines of a Ray cluster."""
    gallery, labels = rows, classes = _parts_and_labels(options, "embeddings", "labels")
    alone = not options.query_embeddings
    if not alone:
        rows, classes = _parts_and_labels(options, "query_embeddings", "query_labels")
    _warn_of_names(classes, labels)
    if not alone:
        validation.check_same_kind(classes, labels)
        cli.require(
            rows.dimensions == gallery.dimensions, "--query_embeddings: are of another model"
        )
    candidates = sum(gallery.rows) - alone
    ks = options.ks or tuple(k for k in KS if k <= min(candidates, SHORT))
    relevant = metrics.relevant_counts(classes, labels, exclude_self=alone)
    depth = max(*ks, int(relevant.max()))
    if depth > min(LONGEST, candidates):
        raise DataError(
            f"--ks, --labels: lists of {depth} rows are needed, for the largest K or class; there "
            f"can be at most {min(LONGEST, candidates)}"
        )
    plan = large_search.Plan(rows, None if alone else gallery, depth)
    directory = files.expand_path("--export", options.export)
    with Console(quiet=options.quiet) as console:
        lists = large_search.search(plan, directory, options.address, console)
        results: dict[str, Any] = metrics.of_blocks_of_lists(
            lists, classes, labels, relevant, ks, options.lone_queries or "miss"
        )
    results |= {
        "rows": len(classes),
        "columns": rows.dimensions,
        "classes": len(np.unique(classes)),
    }
    results["protocol"] = (
        f"exact neighbours by cosine, {depth} of each query, in {printable(str(directory))}"
    )
    return results | ({} if alone else {"gallery_rows": len(labels)})


def of_runs(options: argparse.Namespace) -> dict[str, Any]:
    """All requested metrics of the stored embeddings of one run, or of several runs and their
    combination."""
    exported = stored(options.model)
    runs, first = [*exported], next(iter(exported.values()))
    weights = options.weights or (1.0,) * len(runs)
    cli.require(
        len(weights) == len(runs),
        f"--weights: give {counted(len(runs), 'number')}, one for each run",
    )
    configs = [workdir.read_config(run)["config"] for run in runs]
    settings = validate(Evaluation, configs[0]["evaluation"], "evaluation")
    groups = session_groups(options.session, first)
    stated = {
        protocol.distance_of(workdir.read_results(run).get("protocol", ""))[0] for run in runs
    }
    options.metric = options.metric or (stated.pop() if len(stated) == 1 else "")
    directory = files.expand_path("--export", options.export) if options.export else None
    if directory is not None:
        embedding_files.check_replaceable(directory, EXPORTED)
        for split in first:
            embedding_files.check_replaceable(directory / "embeddings" / split)
    if options.verify:
        for run in runs:
            manifest.check(run, None, DataError, workdir.REMEDY)

    def measured(rows: dict[str, np.ndarray], *, per_query: bool = False) -> dict[str, Any]:
        source = Source(rows, {split: part.labels for split, part in first.items()}, groups)
        return evaluate(options, source, settings, per_query=per_query)

    rows = [
        {split: part.embeddings for split, part in parts.items()} for parts in exported.values()
    ]
    combined, members = rows[0], {}
    if len(runs) > 1:
        members = {str(run): measured(own) for run, own in zip(runs, rows, strict=True)}
        combined = {split: combine([own[split] for own in rows], weights) for split in first}
    results = measured(combined, per_query=directory is not None)
    if options.verify:
        for run in runs:
            check_results(run, members.get(str(run), results))
        results["verified"] = True
    queries = embedding_files.split_off_queries(results)
    results |= {"members": members} if members else {}
    # The results are optimistic as soon as one member was selected on the test classes.
    selects = {config["train"]["select"] for config in configs}
    selected = "test" if "test" in selects else " and ".join(sorted(selects))
    if directory is not None:
        (directory / manifest.NAME).unlink(missing_ok=True)  # of a former export
        for split, part in first.items():
            manifests = [parts[split].manifest for parts in exported.values()]
            embedding_files.write(
                directory / "embeddings" / split, combined[split], part.labels, part.ids,
                finished=all(each.get("finished", True) for each in manifests),
                members=manifests, metadata=part.metadata,
            )  # fmt: skip
        embedding_files.write_queries(directory, queries)
        files.write_json(directory / "results.json", results | {"model": selected})
        manifest.write(directory, {})
    return results | {"model": options.model, "selected": selected}


def check_results(run: Path, found: dict[str, Any]) -> None:
    """Raises DataError if a metric of the stored embeddings is not the one in `results.json`."""
    stored = workdir.read_results(run)
    for entry in metric_table.columns(found):
        value = np.nan if (number := stored.get(entry.name)) is None else number
        if entry.name in stored and not np.isclose(
            value, found[entry.name], rtol=0, atol=TOLERANCE, equal_nan=True
        ):
            raise DataError(
                f"{run / 'results.json'}: {entry.name} is {number}, but {found[entry.name]:.6g} by "
                "the stored embeddings; evaluate the run again"
            )


def evaluate(
    options: argparse.Namespace, source: Source, base: Evaluation, *, per_query: bool = False
) -> dict[str, Any]:
    """All requested metrics, the protocol, and the sizes of the inputs.

    The settings in `base` apply where the command line gives none.
    """
    queries, labels, gallery = (
        source.rows["test"],
        source.labels["test"],
        source.rows.get("gallery"),
    )
    candidates = len(queries) - 1 if gallery is None else len(gallery)
    cli.require(
        candidates > 0, "embeddings: one row has nothing to search; give at least two, or queries"
    )
    one_class = isinstance(labels, np.ndarray)
    cli.require(
        one_class or not options.rerank,
        "--labels: have several classes per row, which --rerank cannot evaluate",
    )
    across = bool(options.model and source.groups)
    settings: dict[str, Any] = {
        "protocol": options.protocol or base.protocol,
        "lone_queries": options.lone_queries or ("omit" if across else base.lone_queries),
        "average": base.nmi_average,
        "clustering": base.clustering,
        "cluster": base.cluster and one_class and not options.no_clustering,
        "metric": distance(options.metric or "cosine"),
    }
    ks = options.ks or tuple(k for k in base.ks if k <= candidates)
    with Console(quiet=options.quiet) as console:
        reranked = _reranked(options, source, ks, settings, console) if options.rerank else {}
        results = protocol.evaluate(
            queries,
            labels,
            ks=ks,
            full_ranking=options.full_ranking or base.full_ranking,
            gallery=gallery,
            gallery_labels=source.labels.get("gallery"),
            **source.groups,
            per_query=per_query,
            **settings,
        )
    results |= {"reranked": reranked} if reranked else {}
    classes = len(np.unique(labels if one_class else labels.values))
    results["protocol"] = protocol.description(
        classes=classes, gallery=gallery is not None, groups=bool(source.groups), **settings
    )
    if across:
        count = len(np.unique(source.groups["groups"]))
        cli.require(
            count > 1,
            f"--session={options.session}: all images are of one session; nothing can be compared",
        )
        results["protocol"] = f"across {count:,} sessions: {results['protocol']}"
    elif options.model and options.data:
        results["near_copies"] = protocol.near_copies(queries, gallery)
    results |= {"rows": len(queries), "columns": queries.shape[1], "classes": classes}
    return results | ({} if gallery is None else {"gallery_rows": len(gallery)})


def _reranked(
    options: argparse.Namespace,
    source: Source,
    ks: tuple[int, ...],
    settings: dict[str, Any],
    console: Console,
) -> dict[str, Any]:
    """Metrics after re-ranking, with their own `protocol`."""
    if not options.quiet:
        console.print("evaluating the reranked ranking")
    queries, own_labels = source.rows["test"], source.labels["test"]
    alone = "gallery" not in source.rows
    gallery, labels = source.rows.get("gallery", queries), source.labels.get("gallery", own_labels)
    dropped = int(
        alone and settings["protocol"] == "paper"
    )  # first neighbours, as in the authors' code
    ks = tuple(k for k in ks if options.ks or k <= LARGEST_RERANKED_K)
    depth = max(1, *ks, int(metrics.relevant_counts(own_labels, labels, exclude_self=alone).max()))
    _, indices = reranking.search(
        queries,
        gallery,
        depth + dropped,
        metric=settings["metric"] if callable(settings["metric"]) else "cosine",
        exclude_self=alone and not dropped,
    )
    result: dict[str, Any] = metrics.of_ranked_lists(
        indices[:, dropped:],
        own_labels,
        None if alone else labels,
        ks=ks,
        lone_queries=settings["lone_queries"],
    )
    result["protocol"] = (
        "reranked: by k-reciprocal neighbours among "
        f"{'all rows' if alone else 'queries and gallery together'}, k1 {reranking.K1}, k2 "
        f"{reranking.K2}, weight of the original distance {reranking.WEIGHT:g}; otherwise as above"
    )
    return result


def print_table(results: dict[str, Any], output: Path | None) -> None:
    """Prints one row per metric and one column per ranking, then the protocols."""
    rankings = dict(results.get("members", {}))
    rankings["combined" if rankings else "plain"] = results
    rankings |= {"reranked": results["reranked"]} if "reranked" in results else {}
    entries = metric_table.columns(results)
    columns = {"metric": [e.heading if e.percent else f"{e.heading} (not in %)" for e in entries]}
    for name, ranking in rankings.items():
        heading = printable(name) if len(rankings) > 1 else "value ± standard error"
        columns[heading] = [metric_table.cell(ranking, entry, digits=2) for entry in entries]
    notes = (
        [f"{results['lone_queries']:,} queries have no relevant row"]
        if results["lone_queries"]
        else []
    )
    if "verified" in results:
        notes.append(
            "verified: the files are as they were written, and the results follow from the stored "
            "embeddings"
        )
    notes += [
        ranking["protocol"]
        for ranking in (results, results.get("reranked", {}))
        if "protocol" in ranking
    ]
    notes.append(
        f"{results['seconds']:.1f} s" + (f"; written to {printable(str(output))}" if output else "")
    )
    title = f"{results['rows']:,} rows, {results['classes']:,} classes; metrics in %"
    console = Console()
    tables.print_table(Table(title, [printable(note) for note in notes], columns), console.rich)
    if results.get("near_copies", 0) > protocol.MANY_COPIES:
        console.warn(open_set.of_near_copies(results["near_copies"], "--session"))
