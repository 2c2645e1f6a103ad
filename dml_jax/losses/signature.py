"""A loss declares its options and the parameters that it learns in its signature.

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

- Positional arguments after the labels are learned. Annotate them with `Proxies`, `Kernel`, `Bias`
  or `Annotated[Array, Learned(…)]`.
- Keyword arguments whose default is a number, text or tuple are options: `method.my_loss.scale` in
  a configuration; see `dml_jax.config.modules`.
- All other keyword arguments are described in `Arguments`; training passes those that the loss has.

Training supplies embeddings and pairs to such a function, and checks them. To call a loss directly,
decorate it with `loss`, which checks the arguments and turns the pairs of a loss with an argument
`candidates` into `Candidates`. Annotate `candidates` with `WeightedCandidates` if pairs may have
weights.
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
    meanings,
    parse_entries,
    section,
)
from dml_jax.config.modules import options
from dml_jax.errors import ConfigError, DataError
from dml_jax.losses.pairwise import PAIR_WEIGHTS, Candidates, split_pairs
from dml_jax.numerics import as_labels, as_numpy, at_least_float32

F = TypeVar("F", bound=Callable[..., Array])


@dataclass(frozen=True)
class Learned:
    """Marks an argument of a loss as a parameter that the loss learns.

    Attributes:
      axes: its shape: C classes, D dimensions, K `centers`.
      start: distribution of the initial values: "uniform" is U(±1/sqrt(D)) as in torch.nn.Linear,
        "constant" is the value in `options`, "option" the distribution in `options`.
      options: section of the options, with defaults, that this parameter adds to the loss.
    """

    axes: str
    start: Literal["uniform", "constant", "option"] = "option"
    options: Any = None


@section
class ProxyOptions:
    """Initial proxies. Only their direction enters the loss; their length determines how fast they
    turn at a given learning rate.

    Attributes:
      init: Distribution of the initial proxies: "he" N(0, 2 / C), as published for Proxy-Anchor;
        "eighth" N(0, 1 / 64), for Proxy-NCA; "dimensions" U(±1/sqrt(D)), for ArcFace; "count"
        U(±1/sqrt(C K)), for SoftTriple.
    """

    init: Literal["he", "eighth", "dimensions", "count"] = "he"


@section
class Centers(ProxyOptions):
    """Initial proxies of a loss with several per class.

    Attributes:
      centers: Number of proxies per class.
    """

    centers: PositiveInt = 3


@section
class Boundary:
    """The margin loss's boundary between positive and negative pairs.

    Attributes:
      beta: Initial distance at the boundary, for every class.
    """

    beta: NonNegative = 1.2


Proxies = Annotated[Array, Learned("CD", options=ProxyOptions())]
Kernel = Annotated[Array, Learned("DC", "uniform")]
Bias = Annotated[Array, Learned("C", "uniform")]
Boundaries = Annotated[Array, Learned("C", "constant", Boundary())]


@functools.cache
def learned_arrays(function: Callable[..., Any]) -> Mapping[str, Learned]:
    """The parameters that a loss learns, by argument."""
    hints = typing.get_type_hints(function, include_extras=True)
    marks = ((name, mark) for name in hints for mark in getattr(hints[name], "__metadata__", ()))
    return {name: mark for name, mark in marks if isinstance(mark, Learned)}


def only_with(option: str, value: Any, *names: str) -> Callable[[F], F]:
    """Declares that the options `names` of a loss have no effect unless `option` is `value`."""

    def declare(function: F) -> F:
        condition = f"method.{function.__name__}.{option}={value!r}"
        function.inert = lambda self, config: (  # type: ignore[attr-defined]
            (getattr(self, option) == value, condition, *names),
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
    """Arguments that several losses share, for N anchors in D dimensions.

    Attributes:
      embeddings: float [N, D], of any norm. Losses on distances or cosines normalise them;
        `softmax` and `n_pair` do not.
      labels: int [N], or text if the loss learns no parameter per class. With a learned parameter
        per class, labels are 0..C-1; the loss is NaN for any other label. Under `jit`, JAX cuts the
        arguments of your function to 32 bits before a loss sees them: number larger labels first,
        `np.unique(labels, return_inverse=True)[1]`.
      proxies: float [C, D], or [C, K, D] for K centers per class, of any norm; learned.
      kernel: float [D, C]; learned.
      bias: float [C]; learned.
      beta: float [C], the boundary of each class; learned.
      candidates: float [M, D], rows that replace the batch as the anchors' positives and negatives.
        They need `candidate_labels`, or `positive` and `negative`. Alternatively `Candidates`,
        which contain their pairs. Without candidates, M is N.
      candidate_labels: [M], the labels of the candidates.
      positive: bool [N, M], pairs to be pulled together, or their weights >= 0 (not in `smooth_ap`
        and `recall_at_k`). Masks replace the labels; give `negative`, too.
      negative: bool or weights [N, M], pairs to be pushed apart. Pairs in neither mask are ignored.
      relation: function (labels [N], labels [M]) -> weights [N, M]: a pair is positive if its
        weight is > 0, negative if it is 0, and ignored if it is NaN.
      weights: float [N] >= 0, weights of the anchors. A mean over anchors, or over their pairs or
        triplets, becomes a weighted mean, which is 0 if all weights are 0. For class weights, pass
        `weights=class_weights[labels]`.
      distance: function of two blocks of rows, [N, D] and [M, D] -> [N, M], that replaces the
        Euclidean distance of unit embeddings. Losses on similarities use -distance.
      divisor: Averages over "all" anchors, pairs or triplets that can count, or over the "active"
        ones, whose loss is positive.
      key: Random key, jax.random.key(...).
      reduce: "mean", or None for the values before averaging, one per anchor [N] or pair [N, M], 0
        where they do not count.
    """


RAISES = """

Raises:
  DataError: if an array has the wrong shape, type or values, or pairs come from two sources.
  ConfigError: if an option breaks its rule.
"""
MASKS = ("positive", "negative")
PAIRS = (*MASKS, "relation", "candidate_labels")
RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "distance": (callable, "a function of two blocks of rows"),
    "key": (lambda key: isinstance(key, Array | np.ndarray), "a random key, jax.random.key(...)"),
    "reduce": (lambda reduce: reduce == "mean", "'mean', or None for unreduced values"),
}


def loss(function: F) -> F:
    """Checks the arguments of a loss and accepts labels of any type; free in a compiled program.

    Arrays become JAX arrays, labels integers of at most 32 bits, and pairs `Candidates`, unless
    they follow from the labels of the batch. The docstring gets the descriptions in `Arguments`
    that it lacks. The values of traced arrays are not checked.
    """
    signature, learned = inspect.signature(function), learned_arrays(function)
    axes = {"embeddings": "ND"} | {key: mark.axes for key, mark in learned.items()}
    axes["weights"] = "N"

    @functools.wraps(function)
    def call(embeddings: Any, labels: Any = None, *arguments: Any, **keywords: Any) -> Array:
        pairs = {key: keywords.pop(key) for key in PAIRS if keywords.get(key) is not None}
        values = signature.bind(embeddings, labels, *arguments, **keywords).arguments
        sizes: dict[str, int] = {}
        for key, letters in axes.items():
            if values.get(key) is not None:
                values[key] = jnp.asarray(_check_array(key, values[key], letters, sizes))
        if values.get("candidates") is not None or pairs:
            values["candidates"] = _check_pairs(function, values, pairs, sizes)
            if labels is None and all(len(values[key]) == 1 for key in learned):
                labels = np.zeros(sizes["N"], np.int32)
        rule = f"class indices in {', '.join(learned)}, 0..C-1" if learned else ""
        values["labels"] = _as_int32(_check_array("labels", labels, "N", sizes), rule)
        for key, (is_valid, rule) in RULES.items():
            if values.get(key) is not None and not is_valid(values[key]):
                raise ConfigError(f"{key} must be {rule}; got {values[key]!r}")
        _check_options(call, values)
        return function(**values)

    call.__doc__ = _describe_arguments(
        inspect.getdoc(function) or function.__name__, signature.parameters
    )
    return call  # type: ignore[return-value]


def _describe_arguments(text: str, names: Collection[str]) -> str:
    """Adds the descriptions in `Arguments` that a docstring lacks."""
    shared = {key: meaning for key, meaning in meanings(Arguments).items() if key in names}
    wrap = textwrap.TextWrapper(100, initial_indent="  ", subsequent_indent="    ")
    lines = [wrap.fill(f"{k}: {v}") for k, v in shared.items() if k not in parse_entries(text)]
    return "\n".join([text, *([] if "\nArgs:\n" in text else ["\nArgs:"]), *lines]) + RAISES


def takes_weights(loss: Callable[..., Any]) -> bool:
    """Whether pairs of a loss may have weights."""
    kind = typing.get_type_hints(loss, include_extras=True).get("candidates")
    return PAIR_WEIGHTS in getattr(kind, "__metadata__", ())


def _check_pairs(
    function: Callable[..., Any],
    values: Mapping[str, Any],
    pairs: Mapping[str, Any],
    sizes: dict[str, int],
) -> Candidates:
    """The rows to compare with the anchors, and their positive and negative pairs."""
    name, keys = function.__name__, [key for key in PAIRS if key in pairs]
    if "candidates" not in inspect.signature(function).parameters:
        raise ConfigError(f"{name} does not compare pairs; remove {', '.join(keys)}")
    candidates, masks = values.get("candidates"), [pairs[key] for key in MASKS if key in pairs]
    in_batch = candidates is None
    sources = [key for key in keys if key not in MASKS][:1]
    sources += [key for key in MASKS if key in keys][:1]
    sources += ["candidates"] * isinstance(candidates, tuple)
    if masks and values["labels"] is not None and not learned_arrays(function):
        sources.append("labels")
    if len(sources) > 1:
        raise DataError(f"{sources[0]} and {sources[1]} both define pairs; remove one")
    if len(masks) == 1:
        key, other = MASKS if "positive" in keys else MASKS[::-1]
        raise DataError(f"{key} needs {other}, too, which may be all False")
    if "candidate_labels" in keys and in_batch:
        raise DataError("candidate_labels need candidates, float [M, D]")
    if isinstance(candidates, tuple):
        candidates, *masks = candidates
    elif not (in_batch or masks or "candidate_labels" in keys):
        raise DataError("candidates need positive and negative [N, M], or candidate_labels [M]")
    rows = values["embeddings"] if in_batch else candidates
    rows = jnp.asarray(_check_array("candidates", rows, "MD", sizes))
    if not masks:
        labels = _check_array("labels", values["labels"], "N", sizes)
        others = pairs.get("candidate_labels", labels)
        others = _check_array("candidate_labels", others, "M", sizes)
        masks = [*_relate(labels, others, pairs.get("relation"), sizes)]
    masks = [_check_array(key, m, "NM", sizes) for key, m in zip(MASKS, masks, strict=True)]
    if in_batch:  # no row is its own positive
        own = np.eye(sizes["N"], dtype=bool)
        masks = [(jnp if isinstance(m, Array) else np).where(own, False, m) for m in masks]
    if not any(isinstance(mask, jax.core.Tracer) for mask in masks):
        overlap = np.argwhere(np.all([np.asarray(mask) > 0 for mask in masks], axis=0))
        if len(overlap):
            pair = tuple(map(int, overlap[0]))
            raise DataError(f"pair {pair} is both positive and negative; choose one")
    masks = [jnp.asarray(mask) for mask in masks]
    for key, mask in zip(MASKS, masks, strict=True):
        if mask.dtype != bool and not takes_weights(function):
            reason = f"because {name} has no weights of pairs"
            raise DataError(f"{key} must be bool, {reason}; pass {key} > 0")
    weights = (mask if mask.dtype == bool else at_least_float32(mask) for mask in masks)
    return Candidates(rows, *weights)


def _relate(labels: Any, others: Any, relation: Any, sizes: dict[str, int]) -> tuple[Any, Any]:
    """Positive and negative pairs [N, M]; without a relation, those of equal and unequal labels."""
    if relation is not None:
        if not callable(relation):
            remedy = "pass weights [N, N] as positive=weights, negative=weights == 0"
            raise ConfigError(f"relation must be a function of labels [N] and [M]; {remedy}")
        result = relation(labels, others)
        return split_pairs(_check_array("the result of relation", result, "NM", sizes))
    if (labels.dtype.kind in "US") != (others.dtype.kind in "US"):
        rule = f"must have the type of the labels, {labels.dtype}"
        raise DataError(f"candidate_labels {rule}; got {others.dtype}")
    if isinstance(labels, Array) or isinstance(others, Array):
        labels, others = (_as_int32(x, "32-bit integers") for x in (labels, others))
    same = labels[:, None] == others[None]
    return same, ~same


def _check_array(name: str, values: Any, axes: str, sizes: dict[str, int]) -> Any:
    """Checks an array with one letter per axis; `sizes` gets the sizes of new letters.

    Whatever is not a JAX array becomes a NumPy array, whose values stay concrete under `jit`.
    """
    if is_label := name.endswith("labels"):
        values = as_labels(name, values)
    array = values if isinstance(values, Array) else as_numpy(name, values)
    shape = array.shape
    if (len(shape) != len(axes) or 0 in shape
        or any(sizes.setdefault(axis, size) != size for axis, size in zip(axes, shape, strict=True))
    ):  # fmt: skip
        expected = ", ".join(str(sizes.get(axis, axis)) for axis in axes)
        if "D" in sizes and axes != "M":
            expected += f"] for embeddings [{sizes['N']}, {sizes['D']}"
        raise DataError(f"{name} must have shape [{expected}]; got {list(shape)}")
    if is_label and array.dtype.kind not in "iuUS":
        raise DataError(f"{name} must be integers or text, one per row; got {array.dtype}")
    real = (bool, jnp.floating, jnp.integer)
    if not (is_label or any(jnp.issubdtype(array.dtype, kind) for kind in real)):
        raise DataError(f"{name} must be real numbers; got {array.dtype}")
    if name in ("weights", *MASKS) and not isinstance(array, jax.core.Tracer):
        numbers = np.asarray(array, np.float64)
        bad = np.argwhere(~((numbers >= 0) & (numbers <= LARGEST)))
        if len(bad):
            value = f"{numbers[tuple(bad[0])]} in row {bad[0][0]}"
            raise DataError(f"{name} must be finite and at least 0; got {value}")
    return array


def _as_int32(labels: Any, rule: str) -> Array:
    """Labels as int32, equal where the labels are: JAX would truncate 64 bits to 32.

    If there is a rule, labels keep their values, and those that cannot are refused.
    """
    if isinstance(labels, Array):
        unsigned = rule and labels.dtype in (np.uint32, np.uint64)
        return jnp.minimum(labels, LIMIT - 1).astype(jnp.int32) if unsigned else labels
    if labels.dtype.kind in "iu" and np.all((labels >= -LIMIT) & (labels < LIMIT)):
        return jnp.asarray(labels, jnp.int32)
    if rule:
        is_text = labels.dtype.kind in "US"
        value = "text" if is_text else labels[np.argmax(np.abs(labels))]
        raise DataError(f"labels must be {rule}; got {value}")
    return jnp.asarray(np.unique(labels, return_inverse=True)[1], jnp.int32)


def _check_options(function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Raises ConfigError if an option breaks its rule, unless it is traced."""
    kind, concrete = options(function), {}
    for key in (values.keys() & kind.__dataclass_fields__.keys()) - learned_arrays(function).keys():
        value: Any = tuple(values[key]) if isinstance(values[key], list) else values[key]
        if not isinstance(value, jax.core.Tracer):
            is_scalar = hasattr(value, "dtype") and np.ndim(value) == 0
            concrete[key] = value.item() if is_scalar else value
    try:
        kind(**concrete)
    except ConfigError as error:
        raise ConfigError(f"{function.__name__}: {' '.join(str(error).split())}") from None
