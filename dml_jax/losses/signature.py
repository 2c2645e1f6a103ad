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
- Keyword arguments with a number, text or tuple as default are options, `method.my_loss.scale` in a
  configuration; see `dml_jax.config.modules`.
- Other keyword arguments are those of `Arguments`; a training passes those that a loss has.

A training finds the pairs of such a function, its embeddings and its checks by itself; called
directly, it needs the decorator `loss`, which also turns the pairs of a loss with `candidates` into
`Candidates`. If the annotation of `candidates` is `WeightedCandidates`, pairs may have weights.
"""

import functools
import inspect
import textwrap
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dml_jax.config.fields import (
    LARGEST,
    LIMIT,
    NonNegative,
    PositiveInt,
    described,
    meanings,
    section,
)
from dml_jax.config.modules import options
from dml_jax.errors import ConfigError, DataError
from dml_jax.losses.pairwise import PAIR_WEIGHTS, Candidates, pairs_of
from dml_jax.numerics import as_labels, as_numpy, at_least_float32

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


def only_with(option: str, value: Any, *names: str) -> Callable[[F], F]:
    """Declares that options of a loss have no effect unless another one has this value."""

    def declare(function: F) -> F:
        needed = f"method.{function.__name__}.{option}={value!r}"
        function.inert = lambda self, config: (  # type: ignore[attr-defined]
            (getattr(self, option) == value, needed, *names),
        )
        return function

    return declare


def classifier(logits: Callable[..., Array]) -> Callable[[F], F]:
    """Declares a classifier: (embeddings [N, D], learned arrays, **options) -> scores [N, C]."""

    def declare(function: F) -> F:
        function.logits = logits  # type: ignore[attr-defined]
        return function

    return declare


class Arguments:
    """Arguments that several losses share, of N anchors in D dimensions.

    Attributes:
      embeddings: float [N, D], of any norm. Losses on distances or cosines normalise them;
        `softmax` and `n_pair` do not.
      labels: int [N], or text where no parameter belongs to a class. With one learned parameter per
        class, 0..C-1; the loss is NaN for any other label. Under `jit`, JAX cuts the arguments of
        your function to 32 bits before a loss sees them: number larger labels first,
        `np.unique(labels, return_inverse=True)[1]`.
      proxies: float [C, D], or [C, K, D] for K centers per class, of any norm; learned.
      kernel: float [D, C]; learned.
      bias: float [C]; learned.
      beta: float [C], the boundary of each class; learned.
      candidates: float [M, D], rows with which the anchors are compared in place of the batch, with
        `candidate_labels` or with `positive` and `negative`; or `Candidates`, which hold their own
        pairs. Without candidates, M is N.
      candidate_labels: [M], the labels of the candidates.
      positive: bool [N, M], pairs to be pulled together, or their weights >= 0 (not in `smooth_ap`
        and `recall_at_k`). With `negative` in place of labels.
      negative: bool or weights [N, M], pairs to be pushed apart. A pair in neither is ignored.
      relation: function (labels [N], labels [M]) -> weights [N, M]: a pair with a weight > 0 is
        positive, with 0 negative, with NaN neither.
      weights: float [N] >= 0, of the anchors; a mean over anchors, or over their pairs or triplets,
        becomes a weighted mean, which is 0 if all weights are. Weights of classes are
        `weights=class_weights[labels]`.
      distance: function of two blocks of rows, [N, D] and [M, D] -> [N, M], in place of the
        Euclidean distance of unit embeddings; losses on similarities take -distance for the
        similarity.
      divisor: Takes the mean over "all" anchors, pairs or triplets that can count, or over the
        "active" ones, those of positive loss.
      key: Random key, jax.random.key(...).
      reduce: "mean", or None for the values that are averaged, one per anchor [N] or pair [N, M],
        0 where they do not count.
    """


RAISES = """

Raises:
  DataError: for arrays of a wrong shape, type or value, and for two sources of pairs.
  ConfigError: for an option that breaks its rule.
"""
PAIRS = ("positive", "negative", "relation", "candidate_labels")


def loss(function: F) -> F:
    """The loss with a check of its arguments, for labels of any type; free in a compiled program.

    Arrays become arrays of JAX, labels numbers of at most 32 bits, and pairs other than those of
    the labels in a batch `Candidates`; the docstring gets what `Arguments` says about the arguments
    that it does not describe. Of traced arrays only shape and type are known.
    """
    name, shape, tables = function.__name__, inspect.signature(function), learned(function)
    axes = {"embeddings": "ND"} | {table: tables[table].axes for table in tables} | {"weights": "N"}

    @functools.wraps(function)
    def call(embeddings: Any, labels: Any = None, *arguments: Any, **keywords: Any) -> Array:
        pairs = {key: keywords.pop(key) for key in PAIRS if keywords.get(key) is not None}
        given = shape.bind(embeddings, labels, *arguments, **keywords).arguments
        sizes: dict[str, int] = {}
        for key in [key for key in axes if given.get(key) is not None]:
            given[key] = jnp.asarray(_array(key, given[key], axes[key], sizes))
        if given.get("candidates") is not None or pairs:
            if "candidates" not in shape.parameters:
                raise ConfigError(f"{name}: takes no {min(pairs)}, because it compares no pairs")
            among, *relations = _pairs(given, pairs, sizes, bool(tables))
            for key, relation in zip(PAIRS, relations, strict=False):
                if relation.dtype != bool and not takes_weights(function):
                    rule = f"{name} takes no weights of pairs; give bool, such as > 0"
                    raise DataError(f"{key}: holds {relation.dtype}; {rule}")
            masks = (jnp.asarray(r) for r in relations)
            weights = (r if r.dtype == bool else at_least_float32(r) for r in masks)
            given["candidates"] = Candidates(jnp.asarray(among), *weights)
            if labels is None and all(len(given[table]) == 1 for table in tables):
                labels = np.zeros(sizes["N"], np.int32)
        given["labels"] = _numbered(_labels("labels", labels, "N", sizes), ", ".join(tables))
        if not (given.get("distance") is None or callable(given["distance"])):
            rule = "give a function of two blocks of rows"
            raise ConfigError(f"distance={given['distance']!r}: {rule}")
        if not isinstance(given.get("key"), Array | np.ndarray | None):
            raise ConfigError(f"key={given['key']!r}: give a random key, jax.random.key(...)")
        if given.get("reduce", "mean") not in ("mean", None):
            rule = "must be 'mean', or None for unreduced values"
            raise ConfigError(f"reduce={given['reduce']!r}: {rule}")
        _check_options(call, given)
        return function(**given)

    call.__doc__ = _with_arguments(inspect.getdoc(function) or name, shape.parameters)
    return call  # type: ignore[return-value]


def _with_arguments(text: str, names: Collection[str]) -> str:
    """A docstring with the descriptions of `Arguments` that it does not contain."""
    shared = {key: meaning for key, meaning in meanings(Arguments).items() if key in names}
    wrap = textwrap.TextWrapper(100, initial_indent="  ", subsequent_indent="    ")
    lines = [wrap.fill(f"{k}: {v}") for k, v in shared.items() if k not in described(text)]
    return "\n".join([text, *([] if "\nArgs:\n" in text else ["\nArgs:"]), *lines]) + RAISES


def takes_weights(loss: Callable[..., Any]) -> bool:
    """Whether a loss on pairs takes weights of pairs besides masks."""
    kind = typing.get_type_hints(loss, include_extras=True).get("candidates")
    return PAIR_WEIGHTS in getattr(kind, "__metadata__", ())


def _pairs(
    given: Mapping[str, Any], pairs: Mapping[str, Any], sizes: dict[str, int], of_classes: bool
) -> tuple[Any, Any, Any]:
    """The fields of `Candidates` from exactly one source, as they are given."""
    among, labels, others = given.get("candidates"), given["labels"], pairs.get("candidate_labels")
    masks = [key for key in ("positive", "negative") if key in pairs]
    sources = [key for key in ("relation", "candidate_labels") if key in pairs][:1] + masks[:1]
    if len(masks) == 1:
        (missing,) = {"positive", "negative"} - {*masks}
        rule = "give both; one may be all False"
        raise DataError(f"{missing}: is missing, but {masks[0]} is given; {rule}")
    if others is not None and among is None:
        raise DataError("candidate_labels: have no candidates; give their embeddings [M, D], too")
    within, relations = among is None, [pairs[key] for key in masks]
    if isinstance(among, tuple):
        sources.append("candidates")
        among, *relations = among
    elif not (within or masks or others is not None):
        remedy = "give positive and negative [N, M], or candidate_labels [M]"
        raise DataError(f"candidates: have no pairs; {remedy}")
    rows = _array("candidates", given["embeddings"] if within else among, "MD", sizes)
    if not relations:
        a = _labels("labels", labels, "N", sizes)
        b = a if within else _labels("candidate_labels", others, "M", sizes)
        relations = [*_related(a, b, pairs.get("relation"))]
    relations = [_array(key, r, "NM", sizes) for key, r in zip(PAIRS, relations, strict=False)]
    if within:  # no row of a batch is its own positive
        own = np.eye(sizes["N"], dtype=bool)
        relations = [(jnp if isinstance(r, Array) else np).where(own, False, r) for r in relations]
    if not any(isinstance(relation, jax.core.Tracer) for relation in relations):
        both = np.argwhere(np.all([np.asarray(relation) > 0 for relation in relations], axis=0))
        if len(both):
            raise DataError(f"positive, negative: pair {tuple(map(int, both[0]))} is in both")
    if masks and labels is not None and not of_classes:
        sources.append("labels")
    if len(sources) > 1:
        raise DataError(f"{sources[0]}, {sources[1]}: both give pairs; remove one of them")
    return rows, *relations


def _related(labels: Any, others: Any, relation: Any) -> tuple[Any, Any]:
    """Positive and negative pairs [N, M] of labels, by default those that are equal or not."""
    if relation is None:
        if isinstance(labels, Array) or isinstance(others, Array):
            labels, others = (_numbered(x, "numbers on both sides") for x in (labels, others))
        elif (labels.dtype.kind in "US") != (others.dtype.kind in "US"):
            found = f"hold {others.dtype}, but labels hold {labels.dtype}"
            raise DataError(f"candidate_labels: {found}; give the same kind")
        same = labels[:, None] == others[None]
        return same, ~same
    if not callable(relation):
        remedy = "weights [N, N] are given as positive=weights, negative=weights == 0"
        raise ConfigError(f"relation: must be a function of labels [N] and [M]; {remedy}")
    found = _concrete("relation", relation(labels, others))
    if found.shape != (len(labels), len(others)):
        given = f"returns {list(found.shape)} for {len(labels)} and {len(others)} labels"
        raise DataError(f"relation: {given}; give [N, M]")
    return pairs_of(found)


def _concrete(name: str, values: Any) -> Any:
    """Arrays of JAX unchanged, others as NumPy arrays, whose values stay known under `jit`."""
    return values if isinstance(values, Array) else as_numpy(name, values)


def _array(name: str, values: Any, axes: str, sizes: dict[str, int]) -> Any:
    """Real numbers, those of weights [N] and pairs [N, M] >= 0, with a letter for each axis, whose
    size agrees with `sizes` or is added to it."""
    found = _concrete(name, values)
    if not any(jnp.issubdtype(found.dtype, kind) for kind in (bool, jnp.floating, jnp.integer)):
        raise DataError(f"{name}: hold {found.dtype}; give real numbers")
    shape = found.shape
    if (len(shape) != len(axes) or 0 in shape
        or any(sizes.setdefault(axis, size) != size for axis, size in zip(axes, shape, strict=True))
    ):  # fmt: skip
        raise _of_shape(name, shape, axes, sizes)
    if axes not in ("N", "NM") or found.dtype == bool:
        return found
    if not isinstance(found, jax.core.Tracer):
        known = np.asarray(found, np.float64)
        wrong = np.argwhere(~((known >= 0) & (known <= LARGEST)))
        if len(wrong):
            value = f"hold {known[tuple(wrong[0])]} in row {wrong[0][0]}"
            raise DataError(f"{name}: {value}; give finite numbers >= 0")
    return found


def _of_shape(name: str, shape: Any, axes: str, sizes: Mapping[str, int]) -> DataError:
    have = "have" if name.endswith("s") and name not in ("bias", "proxies") else "has"
    compared = "D" in sizes and (name == "labels" or not set(axes) <= {*"NM"})
    beside = f" for embeddings [{sizes['N']}, {sizes['D']}]" if compared else ""
    wanted = ", ".join(str(sizes.get(axis, axis)) for axis in axes)
    return DataError(f"{name}: {have} shape {list(shape)}{beside}; give [{wanted}]")


def _labels(name: str, values: Any, axis: str, sizes: Mapping[str, int]) -> Any:
    """Labels of integers or text, one for each row."""
    found = _concrete(name, as_labels(name, values))
    if found.shape != (sizes[axis],):
        raise _of_shape(name, found.shape, axis, sizes)
    if found.dtype.kind not in "iuUS":
        raise DataError(f"{name}: hold {found.dtype}; give one class per row, an integer or text")
    return found


def _numbered(found: Any, tables: str) -> Array:
    """Labels as int32 [N], equal where the labels are: JAX would cut 64 bits to 32."""
    if isinstance(found, Array):
        unsigned = tables and found.dtype in (np.uint32, np.uint64)
        return jnp.minimum(found, LIMIT - 1).astype(jnp.int32) if unsigned else found
    if found.dtype.kind in "iu" and np.all((found >= -LIMIT) & (found < LIMIT)):
        return jnp.asarray(found, jnp.int32)
    if tables:
        what = "are text" if found.dtype.kind in "US" else f"hold {found[np.argmax(np.abs(found))]}"
        raise DataError(
            f"labels: {what}; give the number of each label's class in {tables}, 0..C-1"
        )
    return jnp.asarray(np.unique(found, return_inverse=True)[1], jnp.int32)


def _check_options(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raises ConfigError if an option in a call of a loss breaks its rule, unless it is traced."""
    kind, known = options(function), {}
    for key in (given.keys() & kind.__dataclass_fields__.keys()) - learned(function).keys():
        value = given[key]
        if isinstance(value, jax.core.Tracer):
            continue
        scalar = hasattr(value, "dtype") and np.ndim(value) == 0
        known[key] = value.item() if scalar else tuple(value) if isinstance(value, list) else value
    try:
        kind(**known)
    except ConfigError as error:
        raise ConfigError(f"{function.__name__}: {' '.join(str(error).split())}") from None
