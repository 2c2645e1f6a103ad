"""A loss of the literature on any backbone, to compare losses under one training recipe.

Global pooling and a linear layer compute the embedding, as in Musgrave et al., "A metric learning
reality check" (ECCV 2020), and Roth et al., "Revisiting training strategies" (ICML 2020).
`method.loss` names a loss of `dml_jax.losses` or of a user's module: a classifier, a loss against
proxies, or a loss on pairs. The section with the name of the loss contains its options. Losses can
be summed, "triplet+arcface", with weights w. Pair losses can also compare the batch with a memory
of this and past batches (Wang et al., CVPR 2020):

    L = sum over losses of w loss(batch, batch) + sum over pair losses of w loss(batch, memory)

R@1 on CUB, Cars196, SOP with ResNet-50: normalised softmax, 512-d, 61.3, 84.2, 78.2 (as quoted by
Seidenschwarz et al., ICML 2021); margin, 512-d, 64.4, 82.2, 78.3 (Milbich et al., ECCV 2020);
multi-similarity, 128-d, 62.64, 79.92, 76.49 (Kan et al., NeurIPS 2022); Proxy-Anchor, 512-d, 69.9,
87.7 on the first two (its authors' repository).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Initializer
from jax import Array
from pydantic import AfterValidator

from dml_jax import losses
from dml_jax.backbones import functional
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import Pooling, normal_init, uniform_fan_in
from dml_jax.config.fields import (
    Mark,
    Named,
    NonNegative,
    NonNegativeInt,
    Rules,
    require,
    section,
    validate,
)
from dml_jax.config.modules import (
    function,
    import_code,
    imported,
    section_type,
    takes,
    with_options,
)
from dml_jax.errors import ConfigError, suggest
from dml_jax.losses import cross_batch_memory, pairwise, signature
from dml_jax.losses.pairwise import Candidates, distances
from dml_jax.losses.signature import Learned
from dml_jax.methods import heads, whitening
from dml_jax.methods.contract import (
    Aux,
    Batch,
    Hooks,
    Method,
    PyTree,
    Refresh,
    Teaching,
    TrainingSet,
)
from dml_jax.numerics import unit

Loss = Callable[..., Array]
# "loss" contains a classifier, proxies or boundaries; it is empty for most pair losses.
GROUPS = ("backbone", "embedding", "loss")


LOSSES: dict[str, Loss] = {
    {"softmax": "cross_entropy"}.get(name, name): getattr(losses, name)
    for name in losses.__all__
    if takes(getattr(losses, name), "labels") and name != "per_anchor"
}
PAIR_LOSSES = tuple(name for name, loss in LOSSES.items() if takes(loss, "candidates"))


def find_loss(name: str, value: Any = None) -> Loss:
    """Finds a loss by its name in LOSSES or its import path; `value` is that of `method.loss`."""
    if name in LOSSES:
        return LOSSES[name]
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ConfigError(f"method.loss={(value or name)!r}: {suggest(name, LOSSES)}")
    key = f"method.loss={name!r}"
    loss = getattr(imported(key, module), attribute, None)
    if not (callable(loss) and takes(loss, "labels")):
        raise ConfigError(f"{key}: {module} has no function {attribute}(embeddings, labels)")
    return loss


def section_name(loss: str) -> str:
    """The key of a loss's options: the name of its function."""
    return loss.rpartition(".")[2]


@section
class Config:
    """The options that all losses share; `config_type` adds the options of a loss.

    Attributes:
      name: Module of dml_jax/methods, or an import path.
      loss: Name of a loss, a sum such as "triplet+arcface", or the import path of a function. The
        options of each loss are in a section of its name.
      weights: Weights of the losses of a sum; empty: 1 each.
      distance: Distance with which evaluation, and losses with a distance, compare embeddings.
        "cosine" normalises them, all others do not. An import path names a function of two blocks
        of rows.
      embedding_dim: Length D of the embeddings; 0: the number of channels, without a linear layer
        unless `init` is "whitened".
      pooling: Pooling of the feature map.
      layer_norm: Normalises the pooled features, without scale and bias, as in Zhai & Wu and
        ProxyNCA++.
      init: Initial linear layer: "linear" as in torch.nn.Linear; "he" N(0, 2 / D) with bias 0;
        "whitened" makes the covariance within the training classes spherical and uses the class
        means as proxies.
      bias: Whether the linear layer has a bias; Zhai & Wu's has none.
      memory: Number of embeddings from this and past batches with which pair losses also compare;
        0: this batch only.
      memory_after: Step from which embeddings are stored and compared; 1,000 in the paper.
    """

    name: str = "baseline"
    loss: Annotated[str, Mark.CODE] = "normalized_softmax"
    weights: tuple[NonNegative, ...] = ()
    distance: Annotated[str, AfterValidator(Named(("cosine", "euclidean"))), Mark.BY_PATH] = (
        "cosine"
    )
    embedding_dim: NonNegativeInt = 512
    pooling: Pooling = "avg"
    layer_norm: bool = False
    init: heads.Init = "linear"
    bias: bool = True
    memory: NonNegativeInt = 0
    memory_after: NonNegativeInt = 0

    def __post_init__(self) -> None:
        rule = f"must have one value per loss of loss={self.loss}"
        require(len(self.weights) in (0, len(self.losses)), "weights", self.weights, rule)

    def inert(self, config: Any) -> Rules:
        """What options need; see `config.fields.inert`."""
        layer = (self.embedding_dim, self.bias, self.layer_norm, self.pooling)
        whitened, fits = self.init == "whitened", layer == (0, True, False, "avg")
        return (
            (
                fits or not whitened,
                "method.embedding_dim=0, bias=true, layer_norm=false and pooling='avg', if it is "
                "'whitened'",
                "init",
            ),
            (
                self.embedding_dim or (whitened and fits),
                "a linear layer (method.embedding_dim, or method.init='whitened')",
                *("init", "bias"),
            ),
            (self.compares_pairs, f"one of {', '.join(PAIR_LOSSES)} in method.loss", "memory"),
            (self.memory and self.compares_pairs, "method.memory", "memory_after"),
        )

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses that are summed."""
        return tuple(self.loss.split("+"))

    @property
    def compares_pairs(self) -> bool:
        """Whether a loss can use `data.relation`."""
        return any(takes(find_loss(loss), "candidates") for loss in self.losses)

    @property
    def options(self) -> dict[str, Any]:
        """The options of each loss."""
        return {loss: getattr(self, section_name(loss)) for loss in self.losses}


def config_type(values: Mapping[str, Any]) -> type[Config]:
    """`Config` with the section of each loss in `values`."""
    loss = values.get("loss", Config.loss)
    names = loss.split("+") if isinstance(loss, str) else [str(loss)]
    for name in names:
        find_loss(name, loss)
    if len({section_name(name) for name in names}) < len(names):
        remedy = "give it a weight instead (method.weights)"
        raise ConfigError(f"method.loss={loss!r}: names a loss twice; {remedy}")
    kind: type[Config] = with_options(Config, *((name, find_loss(name)) for name in names))
    return kind


def make_config(
    loss: str = "normalized_softmax", options: Mapping[str, Any] | None = None, **shared: Any
) -> Config:
    """A configuration, such as `make_config("triplet", {"mining": "hard"}, embedding_dim=64)`.

    The options are those of the loss or, for a sum, those of each loss by name; `shared` are fields
    of `Config`. The module of a user's loss is imported.
    """
    sections = (options or {}) if "+" in loss else {section_name(loss): options or {}}
    values = {"name": "baseline", "loss": loss, **sections, **shared}
    import_code({"method": values})
    return validate(section_type("method", {"method": values}), values, "method")


class Criterion(nn.Module):
    """One or several losses with their learned parameters."""

    options: Mapping[str, Any]  # section of the options of each loss, by name, see `find_loss`
    classes: int  # number of classes C
    dim: int  # length D of the embeddings
    distance: Any = None  # function of two blocks of rows; None: distance of unit vectors
    relation: Any = None  # function of two lists of labels; None: equality

    def setup(self) -> None:
        """The learned parameters of each loss, by argument."""
        learned: dict[str, dict[str, Array]] = {loss: {} for loss in self.options}
        for name, (loss, argument, array) in parameters(self.options).items():
            initializer = choose_initializer(array, self.options[loss], self.classes, self.dim)
            learned[loss][argument] = self.param(name, *initializer)
        self.learned = learned

    def __call__(self, embeddings: Array) -> Array | None:
        """Embeddings [N, D] -> logits [N, C] without margins of the first classifier, or None."""
        for loss, options in self.options.items():
            if logits := getattr(find_loss(loss), "logits", None):
                return logits(embeddings, **self.learned[loss], **vars(options))
        return None

    def values(
        self, embeddings: Array, labels: Array, key: Array, candidates: Candidates | None = None
    ) -> dict[str, Array]:
        """Scalar losses of a batch, by name; with candidates, the pair losses only."""
        values = {}
        for i, (name, options) in enumerate(self.options.items()):
            loss, rows = find_loss(name), candidates
            if candidates is not None and not takes(loss, "candidates"):
                continue
            if candidates is None and self.relation and takes(loss, "candidates"):
                own = jnp.eye(len(labels), dtype=bool)
                pairs = (jnp.where(own, False, pair) for pair in self.relation(labels, labels))
                rows = Candidates(embeddings, *pairs)
            mining_key = jax.random.fold_in(key, i) if i else key
            shared = {"candidates": rows, "key": mining_key, "distance": self.distance}
            arguments = {**vars(options), **self.learned[name], **shared}
            arguments = {key: value for key, value in arguments.items() if takes(loss, key)}
            values[name] = loss(embeddings, labels, **arguments)
        return values


def parameters(names: Collection[str]) -> dict[str, tuple[str, str, Learned]]:
    """Learned parameters of a sum of losses: name -> (loss, argument, declaration)."""
    declarations = {}
    for loss in names:
        prefix = f"{section_name(loss)}_" if len(names) > 1 else ""
        for argument, array in signature.learned_arrays(find_loss(loss)).items():
            declarations[prefix + argument] = loss, argument, array
    return declarations


def choose_initializer(
    parameter: Learned, options: Any, classes: int, dim: int
) -> tuple[Initializer, tuple[int, ...]]:
    """Initialiser and shape of a learned parameter."""
    shape = tuple({"C": classes, "D": dim}.get(axis) or options.centers for axis in parameter.axes)
    match parameter.start if parameter.start != "option" else options.init:
        case "he":
            return normal_init((2 / classes) ** 0.5), shape
        case "eighth":
            return normal_init(1 / 8), shape
        case "uniform" | "dimensions":
            return uniform_fan_in(dim), shape
        case "count":
            return uniform_fan_in(math.prod(shape) // dim), shape
        case _:
            (value,) = asdict(parameter.options)
            return nn.initializers.constant(getattr(options, value)), shape


def relate_classes(weights: np.ndarray, losses: Sequence[str]) -> Callable[..., Any]:
    """A function (labels [N], labels [M]) -> (positive, negative) [N, M] from weights [C, C].

    Raises ConfigError if a loss on pairs does not support weights other than 0 and 1.
    """
    positive, negative = pairwise.split_pairs(weights)
    for loss in losses if positive.dtype != bool else ():
        if takes(find_loss(loss), "candidates") and not signature.takes_weights(find_loss(loss)):
            names = [name for name in PAIR_LOSSES if signature.takes_weights(LOSSES[name])]
            raise ConfigError(
                f"data.relation: {loss} has no weights of pairs; use a function that returns 0, 1 "
                f"and NaN, or one of {', '.join(names)} in method.loss"
            )

    def relate(left: Array, right: Array) -> tuple[Array, Array]:
        entries = left[:, None], right[None]
        return jnp.asarray(positive)[entries], jnp.asarray(negative)[entries]

    return relate


def build(config: Config, backbone: Backbone, data: TrainingSet) -> Method:
    """The baseline on a backbone; needs at least two training classes."""
    data.check_classes(2, f"method.loss={config.loss!r}")
    embedding = heads.Embedding(
        config.embedding_dim, config.pooling, config.layer_norm, config.init, config.bias
    )
    dim = config.embedding_dim or backbone.channels
    metric: Any = config.distance
    if "." in metric:
        metric = function("method.distance", metric)
        if not hasattr(metric, "__qualname__"):  # such as a functools.partial
            rule = "has no name to report; define it with def"
            raise ConfigError(f"method.distance={config.distance!r}: {rule}")
    distance = {"cosine": None, "euclidean": distances}.get(metric, metric)
    relation = None if data.relation is None else relate_classes(data.relation, config.losses)
    criterion = Criterion(config.options, data.classes, dim, distance, relation)

    def init(key: Array, batch: Batch) -> tuple[PyTree, PyTree]:
        keys = jax.random.split(key, 3)
        params, model_state = heads.init(backbone, embedding, keys, batch)
        params["loss"], _ = functional.init(criterion, keys[2], functional.struct(1, dim))
        if config.memory:
            model_state["memory"] = cross_batch_memory.empty(config.memory, dim)
            model_state["seen"] = jnp.zeros((), jnp.int32)
        return params, model_state

    encode = heads.encoder(backbone, embedding)
    factors = dict(zip(config.losses, config.weights or (1.0,) * len(config.losses), strict=True))

    def weighted_sum(values: dict[str, Array]) -> Array:
        terms = [jnp.asarray(factors[loss], x.dtype) * x for loss, x in values.items()]
        return jnp.sum(jnp.stack(terms))

    def apply_criterion(params: PyTree, *arguments: Any, method: str) -> PyTree:
        return criterion.apply({"params": params["loss"]}, *arguments, method=method)

    def loss(
        params: PyTree, model_state: PyTree, encoded: Array, batch: Batch, step: Array, key: Array
    ) -> tuple[Array, Aux]:
        key_batch, key_memory = jax.random.split(key)
        values = apply_criterion(params, encoded, batch.labels, key_batch, method="values")
        several = values if len(values) > 1 else {}
        terms = {f"loss_{section_name(loss)}": value for loss, value in several.items()}
        total = weighted_sum(values)
        if not config.memory:
            return total, Aux(model_state, terms)
        rows = {"embeddings": jax.lax.stop_gradient(encoded), "labels": batch.labels}
        memory = cross_batch_memory.enqueue(model_state["memory"], rows)
        past = cross_batch_memory.candidates(memory, batch.labels, relation, enqueued=True)
        values = apply_criterion(params, encoded, batch.labels, key_memory, past, method="values")
        started = model_state["seen"] >= config.memory_after
        term = jnp.where(started, weighted_sum(values), 0)
        memory = jax.tree.map(partial(jnp.where, started), memory, model_state["memory"])
        return total + term, Aux(model_state, {**terms, "memory": term}, memory)

    def after(params: PyTree, model_state: PyTree, memory: PyTree) -> PyTree:
        return {**model_state, "memory": memory, "seen": model_state["seen"] + 1}

    def teach(params: PyTree, model_state: PyTree, encoded: Array) -> Teaching:
        return Teaching(unit(encoded), apply_criterion(params, encoded, method="__call__"))

    def embed(params: PyTree, model_state: PyTree, images: Array) -> Array:
        return encode(params, model_state, images[None], train=False)[0]

    def pooled(params: PyTree, model_state: PyTree, images: Array) -> Array:
        inputs = backbone.preprocess(images)
        variables = params["backbone"], model_state["backbone"]
        return backbone.apply(*variables, inputs, train=False)[0].mean(axis=(1, 2))

    def whiten(
        params: PyTree, model_state: PyTree, features: np.ndarray, key: Array
    ) -> tuple[PyTree, PyTree]:
        labels = np.asarray(data.labels)
        kernel, bias = whitening.within_classes(features, labels)
        rows = unit(jnp.asarray(features @ kernel + bias))
        means = unit(jax.ops.segment_sum(rows, jnp.asarray(labels), data.classes))
        proxies = {  # with the mean length of the initial proxies
            name: means * jnp.linalg.norm(params["loss"][name], axis=-1).mean()
            for name, (_, _, array) in parameters(config.losses).items()
            if array.axes == "CD"
        }
        layer = {"kernel": kernel, "bias": bias}
        return {**params, "embedding": layer, "loss": params["loss"] | proxies}, model_state

    def head(params: PyTree, features: Array) -> Array:
        layer = params["embedding"]
        rows = features @ layer["kernel"] + layer["bias"][None]
        return unit(rows) if distance is None else rows

    def unwhitened(params: PyTree, model_state: PyTree) -> tuple[PyTree, PyTree]:
        layer = {"kernel": jnp.eye(dim), "bias": jnp.zeros(dim)}
        return {**params, "embedding": layer}, model_state

    whitened = config.init == "whitened"
    hooks = Hooks(
        after=after if config.memory else None,
        refresh=Refresh(0, pooled, whiten, head) if whitened else None,
        published=unwhitened if whitened else None,
        teach=teach,
        history=("memory", "seen"),
    )
    embedding_function = heads.unit_embed(encode) if distance is None else embed
    return Method(init, encode, loss, embedding_function, GROUPS, distance=metric, hooks=hooks)
