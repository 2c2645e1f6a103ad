"""Embeddings and metrics of a model: of one split during training, and its final results.

A model may have several test-time variants, e.g. with other weights of its embeddings; all are
computed together, and one is reported.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.config import Config, Evaluation
from dml_jax.config.modules import function
from dml_jax.config.sections import BEST
from dml_jax.console import Console
from dml_jax.data import arrays, relations, sessions
from dml_jax.data.split import Split, some_classes, with_gallery
from dml_jax.errors import UserError
from dml_jax.evaluation import geometry, open_set, protocol
from dml_jax.methods.contract import Distance, Embeddings
from dml_jax.train import controls
from dml_jax.train.embedding import Embedder, Variables
from dml_jax.train.experiment import Experiment
from dml_jax.train.step import TrainState

TRAINED_ON = "classes that the model was trained on (data.split=all)"
SEEN = 2000  # training images on which retrieval is measured during training
Splits = Mapping[str, Split]  # the queries first, then perhaps the "gallery"


class VariantsEmbedder(NamedTuple):
    """The compiled embedding of a run with all its test-time variants."""

    embedder: Embedder  # concatenates the embeddings of all variants
    # The columns of each variant's embedding; without variants, one entry "".
    columns: dict[str, slice]

    def embed(
        self,
        model: Variables,
        splits: Splits,
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> dict[str, Embeddings]:
        """The embeddings of splits, by variant and split."""
        embed = self.embedder.embed_split
        by_split = {name: embed(model, split, on_progress) for name, split in splits.items()}
        return {
            variant: {
                name: np.ascontiguousarray(rows[:, columns]) for name, rows in by_split.items()
            }
            for variant, columns in self.columns.items()
        }


def compiled(experiment: Experiment, shapes: TrainState) -> VariantsEmbedder:
    """The embedder of a run; computes what variants share, e.g. the backbone, only once."""
    functions = dict(experiment.test_variants) or {"": experiment.method.embed}
    embeds = list(functions.values())

    def side_by_side(*arguments: Any) -> jax.Array:
        return jnp.concatenate([embed(*arguments) for embed in embeds], axis=1)

    image = arrays.blank(experiment.shape, 1)
    columns, end = {}, 0
    for name, embed in functions.items():
        width = jax.eval_shape(embed, shapes.params, shapes.model_state, image).shape[1]
        columns[name], end = slice(end, end + width), end + width
    function = side_by_side if len(embeds) > 1 else embeds[0]  # the latter may be compiled already
    return VariantsEmbedder(experiment.embedder(function), columns)


def reported(options: Evaluation, metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """The name of the reported variant: `test_variant`, or the one with the best Recall@1."""
    if options.test_variant != BEST:
        return options.test_variant
    return max(metrics, key=lambda name: metrics[name]["recall@1"])


def metrics(
    config: Config,
    distance: Distance,
    splits: Splits,
    embeddings: Embeddings,
    *,
    cluster: bool,
    per_query: bool = False,
) -> dict[str, Any]:
    """`protocol.evaluate` for the embeddings of a split, with `data.relation` if it is set."""
    options, relation = config.evaluation, config.data.relation
    labels: dict[str, Any] = {key: split.labels for key, split in splits.items()}
    if relation:
        labels = {key: np.array(split.classes)[labels[key]] for key, split in splits.items()}
    name, gallery = next(iter(splits)), embeddings.get("gallery")
    candidates = len(embeddings[name]) - 1 if gallery is None else len(gallery)
    # A column "session" only counts if data.session is set.
    across: dict[str, Any] = sessions.session_groups(splits) if config.data.session else {}
    return protocol.evaluate(
        embeddings[name],
        labels[name],
        ks=[k for k in options.ks if k <= candidates],
        protocol=options.protocol,
        cluster=cluster,
        average=options.nmi_average,
        metric=distance,
        clustering=options.clustering,
        lone_queries="omit" if across else options.lone_queries,  # their classes have one session
        functions={
            name.rpartition(".")[2]: function("evaluation.metrics", name, options)
            for name in options.metrics
        },
        relation=relations.find_relation(relation),
        per_query=per_query,
        gallery=gallery,
        gallery_labels=None if gallery is None else labels["gallery"],
        **across,
    )


def training_class_metrics(
    experiment: Experiment,
    tested: VariantsEmbedder,
    variant: str,
    model: Variables,
    like: Split,
    on_progress: Callable[[int], None],
) -> dict[str, float]:
    """Recall@1 and MAP@R on a sample of training classes, to compare with unseen classes.

    The sample has about SEEN images, and no more classes or images than `like`.
    """
    train, images = experiment.splits["train"], len(like.labels)
    possible = max(2, min(SEEN, images) * len(train.classes) // len(train.labels))
    classes = min(possible, len(np.unique(like.labels)))
    sample = {"train": some_classes(train, classes, images)}
    rows = tested.embed(model, sample, on_progress)[variant]
    config, distance = experiment.config, experiment.method.distance
    measured = metrics(config, distance, sample, rows, cluster=False)
    return {f"train/{name}": measured[name] for name in ("recall@1", "map@r")}


def final(
    experiment: Experiment, state: TrainState, model: str, console: Console
) -> tuple[dict[str, Any], Embeddings]:
    """(`results.json` with `embedding_files.PER_QUERY`, embeddings of the test split)."""
    config, test = experiment.config, experiment.splits["test"]
    by_variant = compiled(experiment, state).embed(state, with_gallery(experiment.splits))
    console.print(f"evaluating on the {config.data.tested}")
    metrics_by_variant = {
        name: _metrics(experiment, rows, per_query=True) for name, rows in by_variant.items()
    }
    variant = reported(config.evaluation, metrics_by_variant)
    results, embeddings = metrics_by_variant[variant], by_variant[variant]
    if experiment.test_variants:
        scalars = {
            name: {key: value for key, value in values.items() if np.ndim(value) == 0}
            for name, values in metrics_by_variant.items()
        }
        results |= {"test_variant": variant, "test_variants": scalars}
    results["protocol"] = protocol_of(experiment, "test")
    if config.data.session:
        results["protocol"] = f"across sessions: {results['protocol']}"
    elif config.data.name == "folder":
        share = protocol.near_copies(*embeddings.values())
        if share > protocol.MANY_COPIES:
            results["near_copies"] = share
            console.warn(open_set.of_near_copies(share, "data.session"))
    if config.data.split == "all":
        results["protocol"] = f"{TRAINED_ON}: {results['protocol']}"
        console.warn(
            "data.split=all: test classes were trained on; another run can measure unseen classes"
        )
    if "gallery" not in embeddings:
        try:
            results |= geometry.pair_errors(embeddings["test"], test.labels)
        except UserError as problem:  # e.g. one image per class
            console.warn(f"pair error rates are not available: {problem}")
    if config.evaluation.refine:
        results["refined"] = refined(experiment, state, embeddings, console)
    if mechanism_metrics := mechanism(experiment, state):
        results["mechanism"] = mechanism_metrics
    results |= {
        "model": model,
        "step": int(state.step),
        "steps": experiment.steps,
        "length": {"steps": config.train.steps, "epochs": config.train.epochs},
        "precision": config.train.precision,
    }
    baselines = controls.embeddings(experiment, console)
    if baselines:
        results["controls"] = {name: _metrics(experiment, rows) for name, rows in baselines.items()}
    return results, embeddings


def mechanism(experiment: Experiment, state: TrainState) -> dict[str, float]:
    """Metrics of `Hooks.diagnose` on a training batch, which show whether the method's mechanism
    has any effect; empty without the hook or `evaluation.diagnose`."""
    diagnose = experiment.method.hooks.diagnose
    if diagnose is None or not experiment.config.evaluation.diagnose:
        return {}
    with experiment.batches(0, 1) as batches:
        images, labels, _ = next(batches)
    return diagnose(state.params, state.model_state, jnp.asarray(images), labels)


def protocol_of(experiment: Experiment, name: str) -> str:
    """A description of how a split is evaluated."""
    options, session = experiment.config.evaluation, bool(experiment.config.data.session)
    return protocol.description(
        options.protocol,
        cluster=options.cluster,
        classes=len(experiment.splits[name].classes),
        average=options.nmi_average,
        gallery=len(with_gallery(experiment.splits, name)) > 1,
        clustering=options.clustering,
        metric=experiment.method.distance,
        lone_queries="omit" if session else options.lone_queries,
        groups=session,
        relation=experiment.config.data.relation,
    )


def _metrics(experiment: Experiment, embeddings: Embeddings, **more: Any) -> dict[str, Any]:
    config, splits = experiment.config, with_gallery(experiment.splits)
    more["cluster"] = config.evaluation.cluster
    return metrics(config, experiment.method.distance, splits, embeddings, **more)


def refined(
    experiment: Experiment, state: TrainState, embeddings: Embeddings, console: Console
) -> dict[str, dict[str, Any]]:
    """Metrics after each test-time refinement, by name; a "problem" if it failed."""
    results: dict[str, dict[str, Any]] = {}
    for kind in experiment.config.evaluation.refine:
        console.print(f"test-time refinement: {kind}")
        start = time.monotonic()
        try:
            rows, statistics = refined_embeddings(experiment, state, kind, embeddings)
        except UserError as problem:
            console.warn(str(problem))
            results[kind] = {"problem": str(problem)}
            continue
        if statistics:
            numbers = (f"{number:,} {name}" for name, number in statistics.items())
            console.print(f"{kind}: {', '.join(numbers)}")
        seconds = {"seconds": round(time.monotonic() - start, 3)}
        results[kind] = statistics | seconds | _metrics(experiment, rows)
    return results


def refined_embeddings(
    experiment: Experiment, state: TrainState, kind: str, embeddings: Embeddings
) -> tuple[Embeddings, dict[str, int]]:
    """(embeddings, statistics) after a refinement of the method, or after a user's function, which
    refines only the queries."""
    config = experiment.config
    if "." not in kind:
        refine = dict(experiment.method.hooks.refine)[kind]
        return refine(state.params, state.model_state, embeddings, config)
    own = function("evaluation.refine", kind, config.evaluation)
    rows = own(embeddings["test"], embeddings.get("gallery"))
    return embeddings | {"test": np.asarray(rows)}, {}
