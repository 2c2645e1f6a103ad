"""Embeddings and metrics of a model: of one split during training, and its final results.

A model may have several test-time variants, such as other weights of its embeddings: they are
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
SEEN = 2000  # training images whose retrieval is measured during training
Splits = Mapping[str, Split]  # the queries first, then the "gallery" if there is one


class VariantsEmbedder(NamedTuple):
    """The compiled embedding of a run with all its test-time variants."""

    embedder: Embedder  # gives the embeddings of all variants side by side
    # The columns of each variant's embedding; a run without any has one, named "".
    columns: dict[str, slice]

    def embed(
        self,
        model: Variables,
        splits: Splits,
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> dict[str, Embeddings]:
        """The embeddings of splits by variant."""
        embed = self.embedder.embed_split
        found = {name: embed(model, split, on_progress) for name, split in splits.items()}
        return {
            variant: {name: np.ascontiguousarray(rows[:, columns]) for name, rows in found.items()}
            for variant, columns in self.columns.items()
        }


def compiled(experiment: Experiment, shapes: TrainState) -> VariantsEmbedder:
    """The embedder of a run; what its variants share, such as the backbone, is computed once."""
    functions = dict(experiment.test_variants) or {"": experiment.method.embed}
    embeds = list(functions.values())

    def side_by_side(*arguments: Any) -> jax.Array:
        return jnp.concatenate([embed(*arguments) for embed in embeds], axis=1)

    image = arrays.blank(experiment.shape, 1)
    columns, end = {}, 0
    for name, embed in functions.items():
        width = jax.eval_shape(embed, shapes.params, shapes.model_state, image).shape[1]
        columns[name], end = slice(end, end + width), end + width
    function = side_by_side if len(embeds) > 1 else embeds[0]  # the latter is compiled elsewhere
    return VariantsEmbedder(experiment.embedder(function), columns)


def reported(options: Evaluation, metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """The name of the variant that is reported: the best at Recall@1, or the chosen one."""
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
    """`protocol.evaluate` for the embeddings of a split, with `data.relation` if there is one."""
    options, relation = config.evaluation, config.data.relation
    labels: dict[str, Any] = {key: split.labels for key, split in splits.items()}
    if relation:
        labels = {key: np.array(split.classes)[labels[key]] for key, split in splits.items()}
    name, gallery = next(iter(splits)), embeddings.get("gallery")
    candidates = len(embeddings[name]) - 1 if gallery is None else len(gallery)
    # A table may have a column of this name that nobody asked for.
    across: dict[str, Any] = sessions.groups(splits) if config.data.session else {}
    return protocol.evaluate(
        embeddings[name],
        labels[name],
        ks=[k for k in options.ks if k <= candidates],
        protocol=options.protocol,
        cluster=cluster,
        average=options.nmi_average,
        metric=distance,
        clustering=options.clustering,
        lone_queries="omit" if across else options.lone_queries,  # classes with one session
        functions={
            name.rpartition(".")[2]: function("evaluation.metrics", name, options)
            for name in options.metrics
        },
        relation=relations.named(relation),
        per_query=per_query,
        gallery=gallery,
        gallery_labels=None if gallery is None else labels["gallery"],
        **across,
    )


def of_training_classes(
    experiment: Experiment,
    tested: VariantsEmbedder,
    variant: str,
    model: Variables,
    like: Split,
    on_progress: Callable[[int], None],
) -> dict[str, float]:
    """Recall@1 and MAP@R among a sample of the training classes, to compare with unseen classes.

    The sample has at most as many classes and images as `like`, and about SEEN images.
    """
    train, images = experiment.splits["train"], len(like.labels)
    fitting = max(2, min(SEEN, images) * len(train.classes) // len(train.labels))
    classes = min(fitting, len(np.unique(like.labels)))
    sample = {"train": some_classes(train, classes, images)}
    rows = tested.embed(model, sample, on_progress)[variant]
    config, distance = experiment.config, experiment.method.distance
    found = metrics(config, distance, sample, rows, cluster=False)
    return {f"train/{name}": found[name] for name in ("recall@1", "map@r")}


def final(
    experiment: Experiment, state: TrainState, model: str, console: Console
) -> tuple[dict[str, Any], Embeddings]:
    """(`results.json` with `embedding_files.PER_QUERY`, embeddings of the test split)."""
    config, test = experiment.config, experiment.splits["test"]
    tested = compiled(experiment, state).embed(state, with_gallery(experiment.splits))
    console.print(f"evaluating on the {config.data.tested}")
    found = {name: _metrics(experiment, rows, per_query=True) for name, rows in tested.items()}
    variant = reported(config.evaluation, found)
    results, embeddings = found[variant], tested[variant]
    if experiment.test_variants:
        each = {
            name: {key: value for key, value in values.items() if np.ndim(value) == 0}
            for name, values in found.items()
        }
        results |= {"test_variant": variant, "test_variants": each}
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
            "data.split=all: the model was trained on the tested classes; another run measures "
            "unseen ones"
        )
    if "gallery" not in embeddings:
        try:
            results |= geometry.pair_errors(embeddings["test"], test.labels)
        except UserError as problem:  # e.g. a single image of each class
            console.warn(f"no error rates of pairs: {problem}")
    if config.evaluation.refine:
        results["refined"] = refined(experiment, state, embeddings, console)
    if measured := mechanism(experiment, state):
        results["mechanism"] = measured
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
    """What `Hooks.diagnose` measures in a training batch: whether the method's mechanism is at
    work; empty without that hook or `evaluation.diagnose`."""
    diagnose = experiment.method.hooks.diagnose
    if diagnose is None or not experiment.config.evaluation.diagnose:
        return {}
    with experiment.batches(0, 1) as batches:
        images, labels, _ = next(batches)
    return diagnose(state.params, state.model_state, jnp.asarray(images), labels)


def protocol_of(experiment: Experiment, name: str) -> str:
    """How a split is evaluated, in words."""
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
    """Metrics after each test-time refinement, by its name; or the "problem" that it had."""
    results: dict[str, dict[str, Any]] = {}
    for kind in experiment.config.evaluation.refine:
        console.print(f"test-time refinement: {kind}")
        start = time.monotonic()
        try:
            refined, facts = refined_embeddings(experiment, state, kind, embeddings)
        except UserError as problem:
            console.warn(str(problem))
            results[kind] = {"problem": str(problem)}
            continue
        if facts:
            numbers = (f"{number:,} {name}" for name, number in facts.items())
            console.print(f"{kind}: {', '.join(numbers)}")
        seconds = {"seconds": round(time.monotonic() - start, 3)}
        results[kind] = facts | seconds | _metrics(experiment, refined)
    return results


def refined_embeddings(
    experiment: Experiment, state: TrainState, kind: str, embeddings: Embeddings
) -> tuple[Embeddings, dict[str, int]]:
    """The embeddings after a refinement of the method, or after a user's function, which refines
    the queries only; numbers about it."""
    config = experiment.config
    if "." not in kind:
        refine = dict(experiment.method.hooks.refine)[kind]
        return refine(state.params, state.model_state, embeddings, config)
    own = function("evaluation.refine", kind, config.evaluation)
    rows = own(embeddings["test"], embeddings.get("gallery"))
    return embeddings | {"test": np.asarray(rows)}, {}
