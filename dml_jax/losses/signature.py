"""The signature of a loss declares its options and the parameters that it learns.

    def my_loss(
        embeddings: Array,
        labels: Array,
        proxies: Proxies,
        *,
        scale: Positive = 16.0,
        weights: Array | None = None,
    ) -> Array:
        '''My loss -> scalar.

        Args:
          scale: Multiplies the cosines.
        '''

- Positional arguments after the labels are learned; their annotation is `Proxies`, `Kernel`, `Bias`
  or another `Annotated[Array, Learned(…)]`.
- Keyword arguments with a default other than None are options, `method.my_loss.scale` in a
  configuration. Their type states the rules (see `dml_jax.config.fields`; without one, the type of
  the default), the docstring the meaning.
- Other keyword arguments are passed to a loss that has them: `candidates`, with which a loss on
  pairs compares the anchors, also in a memory; `key`, for random mining; `distance`, a function of
  two blocks of rows.

A loss with `candidates` also takes relations in place of labels: masks `positive` and `negative`
[N, M] of the anchors and `candidates` [M, D], or of the anchors and the batch. If the annotation of
`candidates` is `WeightedCandidates`, the relations may also hold weights.

A training finds the pairs of such a function, its embeddings and its checks by itself; called
directly, it needs the decorator `loss`. `pair_loss` is shorter, and adds the arguments that all
losses on pairs have.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dml_jax.config.fields import LARGEST, LIMIT, Needs, NonNegative, PositiveInt, section
from dml_jax.errors import ConfigError, DataError
from dml_jax.losses.pairwise import (
    PAIR_WEIGHTS,
    Candidates,
    Distance,
    Divisor,
    Pairs,
    Terms,
    WeightedCandidates,
    masks,
    pairs_of,
    reduced,
)
from dml_jax.numerics import at_least_float32

F = TypeVar("F", bound=Callable[..., Array])


@dataclass(frozen=True)
class Learned:
    """A parameter that a loss learns, in the annotation of its argument.

    Attributes:
      axes: its shape: C classes, D dimensions, K `centers`.
      start: distribution of the initial values: "uniform" is U(±1/sqrt(D)) as in torch.nn.Linear,
        "constant" is the value in `options`, "option" the distribution in `options`.
      options: section of options, with their defaults, that come with this parameter.
    """

    axes: str
    start: Literal["uniform", "constant", "option"] = "option"
    options: Any = None


@section
class Drawn:
    """How proxies are drawn. Only their direction enters the loss; their length determines how fast
    they turn at a given learning rate.

    Attributes:
      init: Distribution of the initial proxies: "he" N(0, 2 / C), as published for Proxy-Anchor;
        "eighth" N(0, 1 / 64), for Proxy-NCA; "dimensions" U(±1/sqrt(D)), for ArcFace; "count"
        U(±1/sqrt(C K)), for SoftTriple.
    """

    init: Literal["he", "eighth", "dimensions", "count"] = "he"


@section
class Centers(Drawn):
    """How many proxies a class has.

    Attributes:
      centers: Number of proxies per class.
    """

    centers: PositiveInt = 3


@section
class Boundary:
    """The margin loss's distance between near and far.

    Attributes:
      beta: Initial boundary of every class.
    """

    beta: NonNegative = 1.2


@section
class Averaged:
    """How a loss on pairs is averaged.

    Attributes:
      divisor: Takes the mean over "all" anchors, pairs or triplets that can count, or over the
        "active" ones, those of positive loss.
    """

    divisor: Divisor = "all"


Proxies = Annotated[Array, Learned("CD", options=Drawn())]
Kernel = Annotated[Array, Learned("DC", "uniform")]
Bias = Annotated[Array, Learned("C", "uniform")]
Boundaries = Annotated[Array, Learned("C", "constant", Boundary())]


@functools.cache
def learned(function: Callable[..., Any]) -> Mapping[str, Learned]:
    """Learned arrays of a loss, by argument."""
    hints = typing.get_type_hints(function, include_extras=True)
    marks = ((name, mark) for name in hints for mark in getattr(hints[name], "__metadata__", ()))
    return {name: mark for name, mark in marks if isinstance(mark, Learned)}


@functools.cache
def options(function: Callable[..., Any]) -> Any:
    """The section of a loss's options, a type."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    defaults = {p.name: p.default for p in keywords if p.default not in (None, p.empty)}
    defaults.pop("reduce", None)  # the result, not the loss
    kinds = {name: hints.get(name, type(default)) for name, default in defaults.items()}
    bases = [Averaged] if hasattr(function, "averaged") else []
    for parameter in learned(function).values():
        if parameter.options is not None:
            bases.append(type(parameter.options))
            defaults |= asdict(parameter.options)
            kinds |= typing.get_type_hints(bases[-1], include_extras=True)
    members = {"__doc__": function.__doc__, "__annotations__": kinds, **defaults}
    return section(type(function.__name__, tuple(bases), members))


def only_with(loss: str, option: str, value: Any) -> Needs:
    """The rule that an option of a loss has no effect unless another one has this value."""
    return Needs(
        f"method.{loss}.{option}={value!r}",
        lambda c: getattr(getattr(c.method, loss, None), option, value) == value,
    )


def classifier(logits: Callable[..., Array]) -> Callable[[F], F]:
    """Declares a classifier: (embeddings [N, D], learned arrays, **options) -> scores [N, C]."""

    def declare(function: F) -> F:
        function.logits = logits  # type: ignore[attr-defined]
        return function

    return declare


def loss(function: F) -> F:
    """The loss with a check of its arguments, for labels of any type; free in a compiled program.

    Arrays become arrays of JAX, and labels numbers of at most 32 bits. Raises DataError for wrong
    arrays, ConfigError for options that break their rules; of traced arrays shape and type are
    known.
    """
    tables, weighted = learned(function), takes_weights(function)

    @functools.wraps(function)
    def call(embeddings: Any, labels: Any = None, *arguments: Any, **keywords: Any) -> Array:
        x = _real("embeddings", embeddings)
        if x.ndim != 2 or 0 in x.shape:
            raise DataError(f"embeddings: have shape {list(x.shape)}; give [N, D], one row each")
        if "relation" in keywords:
            given = np.asarray(labels) if isinstance(labels, Sequence) else labels
            pairs = pairs_of(keywords.pop("relation")(given, given))
            keywords |= dict(zip(("positive", "negative"), pairs, strict=True))
        if "positive" in keywords or "negative" in keywords:
            keywords["candidates"] = related(x, keywords)
            learns = (*arguments, *(keywords[name] for name in tables if name in keywords))
            if labels is None and all(np.shape(table)[:1] == (1,) for table in learns):
                labels = np.zeros(len(x), np.int32)
        labels = _numbered(labels, x.shape, tables)
        names = list(tables)[: len(arguments)]
        arguments = (*map(_real, names, arguments), *arguments[len(names) :])
        keywords |= {name: _real(name, keywords[name]) for name in tables if name in keywords}
        _check_tables(x.shape, dict(zip(names, arguments, strict=False)) | keywords, tables)
        if keywords.get("candidates") is not None:
            if not isinstance(keywords["candidates"], tuple):
                raise DataError("candidates: have no pairs; give positive and negative [N, M], too")
            given = Candidates(*keywords["candidates"])
            keywords["candidates"] = _checked_candidates(given, x.shape)
            for name, relation in zip(("positive", "negative"), given[1:], strict=True):
                if (found := _concrete(relation).dtype) != np.bool_ and not weighted:
                    rule = f"{function.__name__} takes no weights of pairs; give bool, such as > 0"
                    raise DataError(f"{name}: holds {found}; {rule}")
        if keywords.get("weights") is not None:
            keywords["weights"] = _weights("weights", keywords["weights"], x.shape[:1])
        distance, key = keywords.get("distance"), keywords.get("key")
        if not (distance is None or callable(distance)):
            raise ConfigError(f"distance={distance!r}: give a function of two blocks of rows")
        if not (key is None or isinstance(key, Array | np.ndarray)):
            raise ConfigError(f"key={key!r}: give a random key, jax.random.key(...)")
        if (reduce := keywords.get("reduce")) not in ("mean", None):
            raise ConfigError(f"reduce={reduce!r}: must be 'mean', or None for unreduced values")
        _check_options(call, keywords)
        return function(x, labels, *arguments, **keywords)

    return call  # type: ignore[return-value]


def takes_weights(loss: Callable[..., Any]) -> bool:
    """Whether a loss on pairs takes weights of pairs besides masks."""
    kind = typing.get_type_hints(loss, include_extras=True).get("candidates")
    return PAIR_WEIGHTS in getattr(kind, "__metadata__", ())


def pair_loss(*, divisor: Divisor = "all", weighted: bool = True) -> Any:
    """A `loss` from a function of `Pairs`, learned arrays and options, which returns its terms.

        @pair_loss()
        def my_loss(pairs: Pairs, *, scale: Positive = 1.0) -> Mean:
            return Mean(jax.nn.softplus(scale * pairs.compared().distances()), pairs.positive > 0)

    The loss is called as `my_loss(embeddings, labels, *learned, …)` and also takes candidates,
    weights, a distance, the divisor and reduce, see `dml_jax.losses`. A function with an option
    `divisor` applies it itself.

    Args:
      divisor: the default.
      weighted: whether it takes weights of pairs, in `pairs.positive` and `pairs.negative`.
    """

    def make(terms: Callable[..., Terms]) -> Any:
        first, *own = inspect.signature(terms).parameters.values()
        applies = any(p.name == "divisor" for p in own)
        kinds: dict[str, Any] = {} if applies else {"divisor": Divisor}
        kinds |= {"candidates": WeightedCandidates if weighted else Candidates | None}
        kinds |= {"weights": Array | None, "distance": Distance | None}
        kinds |= {"reduce": Literal["mean"] | None}
        defaults = {"divisor": divisor, "reduce": "mean"}
        rows = [first.replace(name=name, annotation=Array) for name in ("embeddings", "labels")]
        added = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=kind
            )
            for name, kind in kinds.items()
        ]

        @functools.wraps(terms)
        def call(
            embeddings: Array,
            labels: Array,
            *tables: Array,
            candidates: Candidates | None = None,
            weights: Array | None = None,
            distance: Distance | None = None,
            reduce: Literal["mean"] | None = "mean",
            **options: Any,
        ) -> Any:
            x = at_least_float32(embeddings)
            among = Candidates(x, *masks(labels)) if candidates is None else candidates
            others = x if candidates is None else at_least_float32(among.embeddings)
            within = candidates is None
            pairs = Pairs(x, others, *among[1:], labels, weights, distance, within)
            averaged: Divisor = "all" if applies else options.pop("divisor", divisor)
            return reduced(terms(pairs, *tables, **options), weights, averaged, reduce)

        given: Any = call
        hints = typing.get_type_hints(terms, include_extras=True)
        learn = {p.name: hints[p.name] for p in own if p.name in hints}
        given.__annotations__ = {"embeddings": Array, "labels": Array, **learn, **kinds}
        given.__signature__ = inspect.Signature([*rows, *own, *added])
        if not applies:
            given.averaged = True
        return loss(call)

    return make


def related(embeddings: Any, keywords: dict[str, Any]) -> Candidates:
    """The candidates of a loss; removes its keywords `candidates`, `positive` and `negative`."""
    others = keywords.pop("candidates", None)
    among = embeddings if others is None else others
    shape = (len(embeddings), len(among))
    found = {}
    for name in ("positive", "negative"):
        given = keywords.pop(name, None)
        mask = _concrete(np.zeros(shape, bool) if given is None else given)
        if mask.shape != shape:
            raise DataError(f"{name}: has shape {list(mask.shape)}; give {list(shape)}")
        if others is None:  # no row of a batch is its own positive
            where = jnp.where if isinstance(mask, Array) else np.where
            mask = where(np.eye(*shape, dtype=bool), False, mask)
        found[name] = mask
    return Candidates(among, **found)


def _concrete(values: Any) -> Any:
    """Arrays of JAX unchanged, others as NumPy arrays, whose values stay known under `jit`."""
    return values if isinstance(values, Array) else np.asarray(values)


def _real(name: str, values: Any) -> Array:
    array = _concrete(values)
    kinds = (jnp.bool_, jnp.floating, jnp.integer)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in kinds):
        raise DataError(f"{name}: hold {array.dtype}; give real numbers")
    return jnp.asarray(array)


def _weights(name: str, values: Any, shape: tuple[int, ...]) -> Array:
    """Weights >= 0, in at least float32."""
    given, weights = _concrete(values), _real(name, values)
    if weights.shape != shape:
        raise DataError(f"{name}: have shape {list(weights.shape)}; give {list(shape)}")
    if not isinstance(given, jax.core.Tracer):
        known = np.asarray(given, np.float64)
        wrong = np.argwhere(~((known >= 0) & (known <= LARGEST)))
        if len(wrong):
            found = f"hold {known[tuple(wrong[0])]} in row {wrong[0][0]}"
            raise DataError(f"{name}: {found}; give finite numbers >= 0")
    return at_least_float32(weights)


def _numbered(labels: Any, shape: tuple[int, ...], tables: Mapping[str, Learned]) -> Array:
    """Labels as int32 [N], equal where the labels are: JAX would cut 64 bits to 32."""
    found = _concrete(labels)
    if found.dtype == object and all(isinstance(label, str) for label in found.flat):
        found = found.astype(str)
    if found.shape != shape[:1]:
        given = f"have shape {list(found.shape)} for embeddings {list(shape)}"
        raise DataError(f"labels: {given}; give [{shape[0]}]")
    if found.dtype.kind not in "iuUS":
        raise DataError(f"labels: hold {found.dtype}; give one class per row, an integer or text")
    if isinstance(found, Array):
        unsigned = tables and found.dtype in (np.uint32, np.uint64)
        return jnp.minimum(found, LIMIT - 1).astype(jnp.int32) if unsigned else found
    if found.dtype.kind in "iu" and np.all((found >= -LIMIT) & (found < LIMIT)):
        return jnp.asarray(found, jnp.int32)
    if tables:
        what = "are text" if found.dtype.kind in "US" else f"hold {found[np.argmax(np.abs(found))]}"
        raise DataError(
            f"labels: {what}; give the number of each label's class in {', '.join(tables)}, 0..C-1"
        )
    return jnp.asarray(np.unique(found, return_inverse=True)[1], jnp.int32)


def _check_tables(
    shape: tuple[int, ...], given: Mapping[str, Any], tables: Mapping[str, Learned]
) -> None:
    """Raises DataError unless the shapes of learned arrays fit the embeddings and each other."""
    sizes = {"D": shape[1]}
    for name in tables.keys() & given.keys():
        found, axes = np.shape(given[name]), tables[name].axes
        if len(found) != len(axes) or any(
            sizes.setdefault(axis, size) != size for axis, size in zip(axes, found, strict=True)
        ):
            wanted = ", ".join(str(sizes.get(axis, axis)) for axis in axes)
            raise DataError(
                f"{name}: has shape {list(found)} for embeddings {list(shape)}; give [{wanted}]"
            )


def _checked_candidates(given: Candidates, shape: tuple[int, ...]) -> Candidates:
    """The candidates of embeddings [N, D] as arrays of JAX."""
    among = _real("candidates", given.embeddings)
    relations = [_concrete(relation) for relation in given[1:]]
    shapes = [among.shape, *(relation.shape for relation in relations)]
    pairs = (shape[0], *among.shape[:1])
    if shapes != [(*pairs[1:], shape[1]), pairs, pairs]:
        rows, *masks = map(list, shapes)
        found = f"have shapes {rows}, {masks[0]} and {masks[1]}"
        wanted = f"[M, {shape[1]}] and two masks [{shape[0]}, M]"
        raise DataError(f"candidates: {found} for embeddings {list(shape)}; give {wanted}")
    if not any(isinstance(relation, jax.core.Tracer) for relation in relations):
        both = np.argwhere(np.all([np.asarray(relation) > 0 for relation in relations], axis=0))
        if len(both):
            raise DataError(f"positive, negative: pair {tuple(map(int, both[0]))} is in both")
    positive, negative = (
        jnp.asarray(relation) if relation.dtype == bool else _weights(name, relation, pairs)
        for name, relation in zip(("positive", "negative"), relations, strict=True)
    )
    return Candidates(among, positive, negative)


def _check_options(function: Callable[..., Any], keywords: Mapping[str, Any]) -> None:
    """Raises ConfigError if an option in a call of a loss breaks its rule, unless it is traced."""
    kind = options(function)
    given = {}
    for name in (keywords.keys() & kind.__dataclass_fields__.keys()) - learned(function).keys():
        value = keywords[name]
        if not isinstance(value, jax.core.Tracer):
            given[name] = value.item() if hasattr(value, "dtype") and np.ndim(value) == 0 else value
        if isinstance(value, list):
            given[name] = tuple(value)
    try:
        kind(**given)
    except ConfigError as error:
        raise ConfigError(f"{function.__name__}: {' '.join(str(error).split())}") from None
