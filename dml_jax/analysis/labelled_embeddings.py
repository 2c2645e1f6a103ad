"""Evaluates labelled embeddings: stored ones of runs, a model's embeddings of images, or files.

`dml-jax evaluate` calls `evaluate_runs`, `evaluate_images`, `evaluate_files` or `evaluate_blocks`,
whose results have the keys of `results.json`, with the protocol and sizes.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dml_jax import files, seal, table
from dml_jax.analysis import text_tables
from dml_jax.analysis.text_tables import Table
from dml_jax.class_names import near_equal, normalised
from dml_jax.config import modules
from dml_jax.config.fields import validate
from dml_jax.config.sections import Evaluation
from dml_jax.console import Console
from dml_jax.data import relations, sessions
from dml_jax.data.split import Split, unread
from dml_jax.errors import DataError, counted, listed, printable, require
from dml_jax.evaluation import (
    metric_table,
    metrics,
    open_set,
    paired,
    protocol,
    reranking,
    validation,
)
from dml_jax.export import embedding_files
from dml_jax.inference import large_search
from dml_jax.inference.model import Model
from dml_jax.train.records import workdir

KS = (1, 2, 4, 8, 10, 100, 1000)
EXPORTED = {"embeddings", "queries.npz", "results.json", seal.MANIFEST}
TOLERANCE = 1e-3  # largest difference of a metric that another machine computed
LARGEST_K, LONGEST = 100, 1000  # sharded: default largest K, rows of a list
LARGEST_RERANKED_K = 100  # default; larger K need longer re-ranked lists


@dataclass(frozen=True)
class Settings:
    """How embeddings are evaluated. What is not given follows the run, or `Evaluation`."""

    ks: tuple[int, ...] = ()
    metric: str = ""  # "cosine", "euclidean" or the import path of a function
    protocol: Literal["clean", "paper"] | None = None
    lone_queries: Literal["miss", "omit"] | None = None
    clustering: bool = True
    rerank: bool = False
    session: str = ""  # photographs taken together, which are left out together
    relation: str = ""  # import path of a function of two lists of class names, see `data.relation`
    quiet: bool = False


@dataclass(frozen=True)
class LabelledEmbeddings:
    """Embeddings of the queries ("test"), and of the "gallery" they search, if not each other."""

    rows: Mapping[str, np.ndarray]  # [N, D]
    labels: Mapping[str, Any]  # [N] or `validation.Classes`
    groups: Mapping[str, Any]  # `groups` and `gallery_groups` of `metrics.retrieval`, if any
    sessions: bool = False  # whether the groups are sessions


def combine(embeddings: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Unit rows of k models, each [N, D_i], weighted, as unit rows [N, D_1 + … + D_k]."""
    norm = math.hypot(*weights)
    pairs = zip(embeddings, weights, strict=True)
    return np.hstack([rows * np.float32(weight / norm) for rows, weight in pairs])


def stored_embeddings(model: str) -> dict[Path, dict[str, table.Table]]:
    """The stored embeddings of runs, by run and split: "test" and, if there is one, "gallery".

    Raises UserError unless all runs embedded the same images.
    """
    names = [model] if Path(model).is_dir() else model.split(",")
    runs = [files.expand_path("--model", name) for name in names]
    for run in runs:
        message = "is not the work directory of a run; to embed images, give --data"
        require((run / "config.json").is_file(), f"--model={run}: {message}")
    splits = ["test"] + ["gallery"] * any((run / "embeddings" / "gallery").exists() for run in runs)
    found = {run: {split: embedding_files.of_run(run, split) for split in splits} for run in runs}
    for run, split in itertools.product(runs, splits):
        first, part = found[runs[0]][split], found[run][split]
        if first.labels is None or part.labels is None:
            message = "holds no labels.npy; embeddings cannot be evaluated without labels"
            raise DataError(f"{run}: {message}")
        same = first.ids == part.ids and np.array_equal(first.labels, part.labels)
        message = "hold different images or labels; give runs of the same images"
        require(same, f"{runs[0]} and {run}: {message}")
    return found


def session_groups(session: str, exported: Mapping[str, table.Table]) -> dict[str, Any]:
    """The sessions of stored embeddings, by the column of `data.session` or by `session`."""
    splits: dict[str, Split] = {}
    for name, part in exported.items():
        split = Split(np.zeros(len(part.ids)), part.ids, unread, (), metadata=part.metadata)
        splits[name] = sessions.add_sessions(split, session) if session else split
    return sessions.session_groups(splits)


def evaluate_images(
    model: Model, splits: Mapping[str, Split], settings: Settings = Settings()
) -> dict[str, Any]:
    """All requested metrics of a model on labelled images."""
    count, classes = len(splits["test"].labels), len(splits["test"].classes)
    if not settings.quiet:
        print(f"embedding {counted(count, 'image')} of {counted(classes, 'class')}", flush=True)
    rows = {name: model.embed_split(split) for name, split in splits.items()}
    named = {name: np.array(split.classes)[split.labels] for name, split in splits.items()}
    labels = named if settings.relation else {key: split.labels for key, split in splits.items()}
    groups = sessions.session_groups(dict(splits))
    embeddings = LabelledEmbeddings(rows, labels, groups, sessions=bool(groups))
    results = evaluate(embeddings, settings, Evaluation(ks=KS))
    if not groups:
        results["near_copies"] = protocol.near_copies(rows["test"], rows.get("gallery"))
    if seen := set(model.training_classes()) & set(splits["test"].classes):
        results["training_classes"] = len(seen)
    return results


def evaluate_files(given: Mapping[str, str], settings: Settings = Settings()) -> dict[str, Any]:
    """All requested metrics of embeddings in files, which are memory-mapped.

    `given` are their paths by option: "embeddings", "labels", "query_embeddings", "query_labels",
    "groups", "query_groups".
    """
    rows, labels = _rows_and_labels(given, "embeddings", "labels")
    groups = {key: _classes(given, key) for key in ("groups", "query_groups") if key in given}
    embeddings = LabelledEmbeddings({"test": rows}, {"test": labels}, groups)
    if "query_embeddings" in given:
        queries, query_labels = _rows_and_labels(given, "query_embeddings", "query_labels")
        _warn_of_names(query_labels, labels)
        if groups:
            groups = {"groups": groups["query_groups"], "gallery_groups": groups["groups"]}
        both = {"test": query_labels, "gallery": labels}
        embeddings = LabelledEmbeddings({"test": queries, "gallery": rows}, both, groups)
        _check_related(given, "query_labels", query_labels, labels)
    else:
        _warn_of_names(labels)
        _check_related(given, "labels", labels)
    return evaluate(embeddings, settings, Evaluation(ks=KS))


def _rows_and_labels(
    given: Mapping[str, str], embeddings: str, labels: str
) -> tuple[np.ndarray, Any]:
    name = f"--{embeddings}"
    path = files.expand_path(name, given[embeddings])
    rows = validation.embeddings(validation.load(path, name=name), name=name)
    classes = _classes(given, labels)
    return rows, validation.classes(classes, len(rows), name=f"--{labels}", of=name)


def _check_related(
    given: Mapping[str, str], key: str, labels: Any, gallery_labels: np.ndarray | None = None
) -> None:
    """Raises DataError if no row has a relevant one, as in a file of other lines than classes."""
    if not isinstance(labels, np.ndarray):  # several classes per row
        return
    if gallery_labels is None:
        what, related = "has the class of another", len(np.unique(labels)) < len(labels)
    else:
        what, related = "has a class of the gallery", bool(np.isin(labels, gallery_labels).any())
    if not related:
        first = f"the first is {labels[:1].tolist()[0]!r}"
        raise DataError(f"--{key}={given[key]}: no row {what}; {first}; give one class per row")


def _warn_of_names(*labels: Any) -> None:
    """Warns of near-equal names of classes, which are different classes."""
    values = [each.values if isinstance(each, validation.Classes) else each for each in labels]
    if alike := near_equal(
        str(name) for each in values if each.dtype.kind == "U" for name in np.unique(each)
    ):
        shown = listed([" and ".join(map(repr, group)) for group in alike], 3)
        Console().warn(f"--labels: near-equal names count as different classes: {shown}")


def _classes(given: Mapping[str, str], key: str) -> np.ndarray | list[list[str]]:
    """Classes from a .npy file, a text file (one per line) or a .tsv file (several per line)."""
    name = f"--{key}"
    path = files.expand_path(name, given[key])
    if path.suffix.lower() == ".npy":
        found = validation.load(path, name=name)
        if found.dtype.kind != "U" or found.ndim != 1:
            return found
        return np.array([normalised(label) for label in found.tolist()])
    if path.suffix.lower() == ".tsv":
        lines = validation.text_lines(path, name=name)
        words = ([normalised(word) for word in line.split("\t")] for line in lines)
        return [[word for word in line if word] for line in words]
    return validation.read_lines(path, name=name)


def evaluate_blocks(
    given: Mapping[str, str], directory: Path, address: str | None, settings: Settings = Settings()
) -> dict[str, Any]:
    """Recall@K, MRR, R-precision and MAP@R of large arrays, computed by a Ray cluster, which writes
    the nearest rows into a directory; `given` as for `evaluate_files`."""
    gallery, labels = rows, classes = _array_and_labels(given, "embeddings", "labels")
    alone = "query_embeddings" not in given
    if not alone:
        rows, classes = _array_and_labels(given, "query_embeddings", "query_labels")
    _warn_of_names(classes, labels)
    if not alone:
        validation.check_same_kind(classes, labels)
        same = rows.shape[1] == gallery.shape[1]
        require(same, "--query_embeddings: are from another model")
    candidates = gallery.shape[0] - alone
    ks = settings.ks or tuple(k for k in KS if k <= min(candidates, LARGEST_K))
    relevant = metrics.relevant_counts(classes, labels, exclude_self=alone)
    depth, most = max(*ks, int(relevant.max())), min(LONGEST, candidates)
    if depth > most:
        needed = f"lists of {depth} rows are needed, for the largest K or class"
        raise DataError(f"--ks, --labels: {needed}; there can be at most {most}")
    plan = large_search.Plan(rows, None if alone else gallery, depth)
    with Console(quiet=settings.quiet) as console:
        lists = large_search.search(plan, directory, address, console)
        lone_queries = settings.lone_queries or "miss"
        results: dict[str, Any] = metrics.summarize_lists(
            lists, classes, labels, relevant, ks, lone_queries
        )
    sizes = {"rows": len(classes), "columns": rows.shape[1], "classes": len(np.unique(classes))}
    results["protocol"] = f"exact neighbours by cosine, {depth} of each query, in {directory}"
    return results | sizes | ({} if alone else {"gallery_rows": len(labels)})


def _array_and_labels(
    given: Mapping[str, str], embeddings: str, labels: str
) -> tuple[large_search.Array, np.ndarray]:
    rows = large_search.array(f"--{embeddings}", given[embeddings])
    classes = np.asarray(_classes(given, labels))
    return rows, validation.labels(classes, rows.shape[0], name=f"--{labels}", of=f"--{embeddings}")


def evaluate_runs(
    model: str,
    settings: Settings = Settings(),
    *,
    weights: Sequence[float] | None = None,
    export: Path | None = None,
    verify: bool = False,
    trust_code: bool = False,
) -> dict[str, Any]:
    """All requested metrics of the stored embeddings of a run, or of several and their combination.

    Args:
      model: work directories, separated by commas; the settings of the first are the defaults.
      weights: factors of the runs' embeddings; all 1 by default.
      export: a directory to which embeddings and results are written in the layout of a run.
      verify: check that all files are as they were written, the results of the runs, and that
        their models, loaded with `trust_code`, compute the row of the probe image.
    """
    exported = stored_embeddings(model)
    runs, first = [*exported], next(iter(exported.values()))
    weights = weights or (1.0,) * len(runs)
    count = counted(len(runs), "number")
    require(len(weights) == len(runs), f"--weights: give {count}, one for each run")
    configs = [workdir.read_config(run)["config"] for run in runs]
    stated = configs[0]["evaluation"].items()  # without the options of functions
    own = {key: value for key, value in stated if key in Evaluation.__dataclass_fields__}
    base = validate(Evaluation, own, "evaluation")
    of_run = configs[0].get("data", {}).get("session")
    groups = session_groups(settings.session, first) if settings.session or of_run else {}
    (modules.import_code if trust_code else modules.check_stored)(configs[0], ["data.relation"])
    relation = configs[0].get("data", {}).get("relation", "")
    settings = replace(settings, relation=settings.relation or relation)
    labels = {split: part.labels for split, part in first.items()}
    if settings.relation:
        labels = {key: np.array(part.metadata["class_name"]) for key, part in first.items()}
    protocols = [workdir.read_results(run).get("protocol", "") for run in runs]
    distances = {protocol.distance_of(stated)[0] for stated in protocols}
    distance = distances.pop() if len(distances) == 1 else ""
    settings = replace(settings, metric=settings.metric or distance)
    if export is not None:
        table.check_replaceable(export, EXPORTED)
        for split in first:
            table.check_replaceable(export / "embeddings" / split)
    if verify:
        for run in runs:
            seal.read(run, workdir.KIND, exact=False, remedy=workdir.REMEDY)
            Model(run, trust_code=trust_code).distance_of_probe()

    def measured(rows: dict[str, np.ndarray], *, per_query: bool = False) -> dict[str, Any]:
        embeddings = LabelledEmbeddings(rows, labels, groups, sessions=bool(groups))
        return evaluate(embeddings, settings, base, per_query=per_query)

    rows = {
        run: {split: part.embeddings for split, part in parts.items()}
        for run, parts in exported.items()
    }
    combined, members, tests = rows[runs[0]], {}, {}
    if len(runs) > 1:
        members = {str(run): measured(rows[run], per_query=len(runs) == 2) for run in runs}
        combined = {split: combine([rows[run][split] for run in runs], weights) for split in first}
    if len(runs) == 2:
        omit = bool(groups) or (settings.lone_queries or base.lone_queries) == "omit"
        first_run, second_run = members.values()
        compared = paired.compare_all(first_run, second_run, labels["test"], omit=omit)
        tests = {"paired": compared}
        members = {
            name: {key: value for key, value in found.items() if np.ndim(value) == 0}
            for name, found in members.items()
        }
    results = measured(combined, per_query=export is not None)
    if verify:
        for run in runs:
            check_results(run, members.get(str(run), results))
        results["verified"] = True
    queries = embedding_files.split_off_queries(results)
    results |= ({"members": members} if members else {}) | tests
    # The results are optimistic as soon as one member was selected on the test classes.
    selects = {config["train"]["select"] for config in configs}
    selected = "test" if "test" in selects else " and ".join(sorted(selects))
    if export is not None:
        (export / seal.MANIFEST).unlink(missing_ok=True)  # describes an earlier export
        for split, part in first.items():
            seals = [parts[split].seal for parts in exported.values()]
            finished = all(stated.about.get("finished", True) for stated in seals)
            table.write(
                export / "embeddings" / split,
                *(combined[split], part.labels, part.ids),
                finished=finished,
                members=[asdict(stated) for stated in seals],
                metadata=part.metadata,
            )
        embedding_files.write_queries(export, queries)
        files.write_json(export / "results.json", results | {"model": selected})
        parts = [f"embeddings/{split}" for split in first]
        names = ["queries.npz", "results.json"]
        seal.close(export, "evaluation", names=names, parts=parts)
    return results | {"model": model, "selected": selected}


def check_results(run: Path, found: dict[str, Any]) -> None:
    """Raises DataError if a metric of the stored embeddings is not the one in `results.json`."""
    stored = workdir.read_results(run)
    for name in (entry.name for entry in metric_table.columns(found) if entry.name in stored):
        value = np.nan if stored[name] is None else stored[name]
        if not np.isclose(value, found[name], rtol=0, atol=TOLERANCE, equal_nan=True):
            problem = f"{name} is {stored[name]}, but {found[name]:.6g} by the stored embeddings"
            raise DataError(f"{run / 'results.json'}: {problem}; evaluate the run again")


def evaluate(
    embeddings: LabelledEmbeddings, settings: Settings, base: Evaluation, *, per_query: bool = False
) -> dict[str, Any]:
    """All requested metrics, the protocol, and the sizes of the inputs.

    `base` applies where `settings` gives nothing.
    """
    queries, labels = embeddings.rows["test"], embeddings.labels["test"]
    gallery, groups = embeddings.rows.get("gallery"), embeddings.groups
    candidates = len(queries) - 1 if gallery is None else len(gallery)
    message = "one row has nothing to search; give at least two, or queries"
    require(candidates > 0, f"embeddings: {message}")
    one_class = isinstance(labels, np.ndarray)
    message = "have several classes per row, which --rerank cannot evaluate"
    require(one_class or not settings.rerank, f"--labels: {message}")
    lone_queries = "omit" if embeddings.sessions else base.lone_queries
    name = settings.metric or "cosine"
    options: dict[str, Any] = {
        "protocol": settings.protocol or base.protocol,
        "lone_queries": settings.lone_queries or lone_queries,
        "average": base.nmi_average,
        "clustering": base.clustering,
        "cluster": base.cluster and one_class and settings.clustering,
        "metric": modules.function("distance", name) if "." in name else name,
    }
    ks = settings.ks or tuple(k for k in base.ks if k <= candidates)
    with Console(quiet=settings.quiet) as console:
        reranked = {}
        if settings.rerank:
            if not settings.quiet:
                console.print("evaluating the reranked ranking")
            reranked_ks = settings.ks or tuple(k for k in ks if k <= LARGEST_RERANKED_K)
            reranked = {"reranked": _reranked(embeddings, reranked_ks, options)}
        results = protocol.evaluate(
            queries,
            labels,
            ks=ks,
            gallery=gallery,
            gallery_labels=embeddings.labels.get("gallery"),
            **groups,
            relation=relations.find_relation(settings.relation),
            per_query=per_query,
            **options,
        )
    classes = len(np.unique(labels if one_class else labels.values))
    separate, grouped = gallery is not None, bool(groups)
    described = protocol.description(
        classes=classes, gallery=separate, groups=grouped, relation=settings.relation, **options
    )
    if embeddings.sessions:
        count = len(np.unique(groups["groups"]))
        message = "all images are of one session; nothing can be compared"
        require(count > 1, f"--session={settings.session}: {message}")
        described = f"across {count:,} sessions: {described}"
    results |= reranked | {"protocol": described}
    results |= {"rows": len(queries), "columns": queries.shape[1], "classes": classes}
    return results | ({} if gallery is None else {"gallery_rows": len(gallery)})


def _reranked(
    embeddings: LabelledEmbeddings, ks: tuple[int, ...], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Metrics after re-ranking, with their own `protocol`."""
    queries, labels = embeddings.rows["test"], embeddings.labels["test"]
    gallery = embeddings.rows.get("gallery")
    alone, gallery_labels = gallery is None, embeddings.labels.get("gallery", labels)
    # The authors' code drops the first neighbour, which need not be the query.
    dropped = int(alone and options["protocol"] == "paper")
    relevant = metrics.relevant_counts(labels, gallery_labels, exclude_self=alone)
    _, indices = reranking.search(
        queries,
        queries if gallery is None else gallery,
        max(1, *ks, int(relevant.max())) + dropped,
        metric=options["metric"] if callable(options["metric"]) else "cosine",
        exclude_self=alone and not dropped,
    )
    lists, lone_queries = indices[:, dropped:], options["lone_queries"]
    others = None if alone else gallery_labels
    result: dict[str, Any] = metrics.of_ranked_lists(
        lists, labels, others, ks=ks, lone_queries=lone_queries
    )
    among = "all rows" if alone else "queries and gallery together"
    constants = f"k1 {reranking.K1}, k2 {reranking.K2}"
    result["protocol"] = (
        f"reranked: by k-reciprocal neighbours among {among}, {constants}, weight of the original "
        f"distance {reranking.WEIGHT:g}; otherwise as above"
    )
    return result


def print_results(results: Mapping[str, Any], output: Path | None = None) -> None:
    """Prints one row per metric and one column per ranking, then the protocols."""
    rankings = dict(results.get("members", {}))
    rankings["combined" if rankings else "plain"] = results
    rankings |= {"reranked": results["reranked"]} if "reranked" in results else {}
    entries = metric_table.columns(results)
    columns = {"metric": [e.heading if e.percent else f"{e.heading} (not in %)" for e in entries]}
    for name, ranking in rankings.items():
        heading = printable(name) if len(rankings) > 1 else "value ± standard error"
        columns[heading] = [metric_table.cell(ranking, entry, digits=2) for entry in entries]
    notes = []
    if results["lone_queries"]:
        notes.append(f"{results['lone_queries']:,} queries have no relevant row")
    if "verified" in results:
        follow = "the results follow from the stored embeddings"
        notes.append(f"verified: the files are as they were written, and {follow}")
    for entry in entries if "paired" in results else ():
        if test := results["paired"].get(entry.name):
            factor = 100 if entry.percent else 1
            mean, low, high = (factor * test[key] for key in ("mean", "low", "high"))
            of_all = f"p {test['p']:.2g}, {test['classes']:,} classes"
            notes.append(
                f"second less first, {entry.heading}: {mean:+.2f} ({low:+.2f} to {high:+.2f}, "
                f"{of_all})"
            )
    both = (results, results.get("reranked", {}))
    notes += [ranking["protocol"] for ranking in both if "protocol" in ranking]
    written = f"; written to {output}" if output else ""
    notes.append(f"{results['seconds']:.1f} s{written}")
    sizes = counted(results["rows"], "row"), counted(results["classes"], "class")
    title = f"{', '.join(sizes)}; metrics in %"
    console = Console()
    text_tables.print_table(Table(title, notes, columns), console.rich)
    if seen := results.get("training_classes"):
        few = f"{seen:,} of {counted(results['classes'], 'class')}"
        console.warn(
            f"the names of {few} are those of classes that the model was trained on, so the "
            "figures do not hold for unseen classes"
        )
    if results.get("near_copies", 0) > protocol.MANY_COPIES:
        console.warn(open_set.of_near_copies(results["near_copies"], "--session"))
