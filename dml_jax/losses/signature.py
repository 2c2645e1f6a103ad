"""The signature of a loss declares its options and the parameters that it learns.

    def my_loss(
        embeddings: jax.Array,
        labels: jax.Array,
        proxies: Proxies,
        *,
        scale: Positive = 16.0,  # of the cosines
        weights: jax.Array | None = None,
    ) -> jax.Array:

- Positional arguments after the labels are learned; their annotation is `Proxies`, `Kernel`, `Bias` or another
  `Annotated[jax.Array, Learned(…)]`.
- Keyword arguments with a default other than None are options, `method.my_loss.scale` in a configuration. Their type
  states the rules (see `dml_jax.config.fields`; without one, the type of the default), their comment the meaning.
- Other keyword arguments are passed to a loss that has them: `candidates`, with which a loss on pairs compares the
  anchors, also in a memory; `key`, for random mining; `distance`, a function of two blocks of rows.

A loss with `candidates` also takes relations in place of labels: `positive` and `negative` [N, M], of the anchors to
`candidates` [M, D], or to the batch without any.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.config.fields import NonNegative, PositiveInt, section
from dml_jax.errors import DataError
from dml_jax.losses.pairwise import Candidates

F = TypeVar("F", bound=Callable[..., jax.Array])


@dataclass(frozen=True)
class Learned:
    """A parameter that a loss learns, in the annotation of its argument.

    Attributes:
      axes: its shape: C classes, D dimensions, K `centers`.
      start: distribution of the initial values: "normal" is N(0, 2 / C) as in Proxy-Anchor's code, where only the
        direction of a proxy enters the loss and its length determines how fast it turns; "uniform" is U(±1/sqrt(D)) as
        in torch.nn.Linear; "constant" is the one option in `options`.
      options: section of options that the loss has because it learns this parameter, with their defaults.
    """

    axes: str
    start: Literal["normal", "uniform", "constant"] = "normal"
    options: Any = None


@section
class Centers:
    """How many proxies a class has."""

    centers: PositiveInt = 3  # per class


@section
class Boundary:
    """The margin loss's distance between near and far."""

    beta: NonNegative = 1.2  # initial boundary of every class


Proxies = Annotated[jax.Array, Learned("CD")]
Kernel = Annotated[jax.Array, Learned("DC", "uniform")]
Bias = Annotated[jax.Array, Learned("C", "uniform")]
Boundaries = Annotated[jax.Array, Learned("C", "constant", Boundary())]


@functools.cache
def learned(function: Callable[..., Any]) -> Mapping[str, Learned]:
    """Learned arrays of a loss, by argument."""
    hints = typing.get_type_hints(function, include_extras=True)
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: mark for name, found in marks.items() for mark in found if isinstance(mark, Learned)}


@functools.cache
def options(function: Callable[..., Any]) -> Any:
    """The section of a loss's options, a type."""
    hints = typing.get_type_hints(function, include_extras=True)
    own = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default not in (None, parameter.empty)
    }
    kinds = {name: hints.get(name, type(default)) for name, default in own.items()}
    bases = []
    for parameter in learned(function).values():
        if parameter.options is not None:
            bases.append(type(parameter.options))
            own |= asdict(parameter.options)
            kinds |= typing.get_type_hints(bases[-1], include_extras=True)
    text = f"Options of `{function.__name__}`."
    made: Any = section(type(function.__name__, tuple(bases), {"__doc__": text, "__annotations__": kinds, **own}))
    made.__wrapped__ = function  # whose source has the comments
    return made


def classifier(logits: Callable[..., jax.Array]) -> Callable[[F], F]:
    """Declares a classifier: (embeddings [N, D], learned parameters, **options) -> scores [N, C] without margins."""

    def declare(function: F) -> F:
        function.logits = logits  # type: ignore[attr-defined]
        return function

    return declare


def loss(function: F) -> F:
    """The loss with a check of its arguments, which costs nothing in a compiled program, for labels of any type.

    Wrong shapes raise `DataError`, and so do labels that are text if the loss has parameters for each class.
    """
    tables = learned(function)

    @functools.wraps(function)
    def call(embeddings: Any, labels: Any = None, *arguments: Any, **keywords: Any) -> jax.Array:
        if "positive" in keywords or "negative" in keywords:
            keywords["candidates"] = related(embeddings, function.__name__ in WEIGH_PAIRS, keywords)
            labels = np.zeros(len(embeddings), np.int32) if labels is None else labels
        if not isinstance(labels, jax.Array):
            labels = np.asarray(labels)
        given = dict(zip(tables, arguments, strict=False)) | keywords
        if problem := _problem(np.shape(embeddings), labels, given, tables):
            raise DataError(problem)
        return function(embeddings, labels, *arguments, **keywords)

    return call  # type: ignore[return-value]


WEIGH_PAIRS = ("contrastive", "multi_similarity", "nt_xent", "sup_con")  # losses that take weights of pairs


def related(embeddings: Any, weigh: bool, keywords: dict[str, Any]) -> Candidates:
    """The candidates of a loss from its keywords `candidates`, `positive` and `negative`, which are removed."""
    others = keywords.pop("candidates", None)
    among = embeddings if others is None else others
    shape = (len(embeddings), len(among))
    found = {}
    for name in ("positive", "negative"):
        given = keywords.pop(name, None)
        mask = jnp.zeros(shape, bool) if given is None else jnp.asarray(given)
        if mask.shape != shape:
            raise DataError(f"{name}: has shape {list(mask.shape)}; give {list(shape)}")
        if mask.dtype != bool and not weigh:
            raise DataError(f"{name}: holds {mask.dtype}; give bool; only {', '.join(WEIGH_PAIRS)} take weights")
        # No row of a batch is its own positive.
        found[name] = jnp.where(jnp.eye(*shape, dtype=bool), False, mask) if others is None else mask
    both = (found["positive"] > 0) & (found["negative"] > 0)
    if not isinstance(both, jax.core.Tracer) and bool(both.any()):
        pair = tuple(int(i) for i in jnp.argwhere(both)[0])
        raise DataError(f"positive, negative: pair {pair} is in both")
    return Candidates(among, **found)


def _problem(shape: tuple[int, ...], labels: Any, given: Mapping[str, Any], tables: Mapping[str, Learned]) -> str:
    """Which argument does not fit the embeddings; empty if all do."""
    if len(shape) != 2:
        return f"embeddings: have shape {list(shape)}; give [N, D], one embedding per row"
    rows, width = shape
    if labels.shape != (rows,):
        return f"labels: have shape {list(labels.shape)} for embeddings {list(shape)}; give [{rows}]"
    for name in tables.keys() & given.keys():
        found, axes = np.shape(given[name]), tables[name].axes
        if len(found) != len(axes) or any(
            axis == "D" and size != width for axis, size in zip(axes, found, strict=True)
        ):
            wanted = ", ".join(str(width) if axis == "D" else axis for axis in axes)
            return f"{name}: has shape {list(found)} for embeddings {list(shape)}; give [{wanted}]"
    if (candidates := given.get("candidates")) is not None:
        among, positive, negative = map(np.shape, candidates)
        if len(among) != 2 or among[1] != width or not positive == negative == (rows, among[0]):
            return (
                f"candidates: have shapes {list(among)}, {list(positive)} and {list(negative)} for embeddings "
                f"{list(shape)}; give [M, {width}] and two masks [{rows}, M]"
            )
    if tables and labels.dtype.kind in "UO":
        return f"labels: are text; give the number of each label's class in {', '.join(tables)}, 0..C-1"
    return ""
