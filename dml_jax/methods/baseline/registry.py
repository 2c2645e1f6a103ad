"""The losses a baseline can be trained with: one entry of LOSSES per loss.

The options of a loss are a dataclass, `method.<loss>.<option>` in a configuration; the defaults are those of the paper
or of its authors' code. The losses themselves are functions of `dml_jax.losses`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
from flax.typing import Initializer

from dml_jax import losses
from dml_jax.backbones.initializers import normal_init, uniform_fan_in
from dml_jax.config_schema import require
from dml_jax.losses.classification import linear_logits
from dml_jax.losses.mining import Mining
from dml_jax.losses.pairs import cosine
from dml_jax.losses.similarity import Options as MultiSimilarity

Params = dict[str, jax.Array]
Shapes = dict[str, tuple[Initializer, tuple[int, ...]]]  # initialiser and shape by name

POSITIVE = ("temperature", "scale", "gamma", "alpha", "centers")  # options that must be; no other may be negative


@dataclass(frozen=True)
class Options:
    """Options of a loss."""

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            value = getattr(self, option.name)
            if option.name in POSITIVE:
                require(value > 0, option.name, value, "must be positive")
            elif isinstance(value, float):
                require(value >= 0, option.name, value, "must not be negative")


@dataclass(frozen=True)
class CrossEntropy(Options):
    smoothing: float = 0.0  # of the labels


@dataclass(frozen=True)
class NormalizedSoftmax(Options):
    temperature: float = 0.05
    smoothing: float = 0.0


@dataclass(frozen=True)
class ArcFace(Options):
    margin: float = 0.5  # radians
    scale: float = 64.0


@dataclass(frozen=True)
class CosFace(Options):
    margin: float = 0.35
    scale: float = 64.0


@dataclass(frozen=True)
class ProxyNCA(Options):
    scale: float = 3.0  # length of embeddings and proxies


@dataclass(frozen=True)
class ProxyNCAPP(Options):
    temperature: float = 1 / 9


@dataclass(frozen=True)
class ProxyAnchor(Options):
    margin: float = 0.1
    alpha: float = 32.0


@dataclass(frozen=True)
class SoftTriple(Options):
    centers: int = 10  # per class
    scale: float = 20.0  # lambda
    gamma: float = 0.1
    margin: float = 0.01  # delta
    spread: float = 0.2  # tau, weight of the regulariser


@dataclass(frozen=True)
class Contrastive(Options):
    positive_margin: float = 0.0
    negative_margin: float = 1.0
    squared: bool = False
    average: Literal["all", "active"] = "active"  # over all pairs of a kind, or those with a positive hinge


@dataclass(frozen=True)
class Triplet(Options):
    margin: float = 0.2
    squared: bool = True  # compare squared distances
    mining: Mining = "semi_hard"


@dataclass(frozen=True)
class Margin(Options):
    margin: float = 0.2  # alpha
    beta: float = 1.2  # initial boundary of every class
    nu: float = 0.0  # weight of the boundaries
    mining: Mining = "distance_weighted"


@dataclass(frozen=True)
class NPair(Options):
    l2: float = 0.002  # weight of the mean squared length of the embeddings, which are not normalised


@dataclass(frozen=True)
class LiftedStructure(Options):
    margin: float = 1.0
    normalize: bool = True  # unit embeddings; the paper uses them as they are


def no_parameters(options: Any, classes: int, dim: int) -> Shapes:
    return {}


def classifier(options: Any, classes: int, dim: int) -> Shapes:
    """A linear layer, initialised like torch.nn.Linear."""
    return {"kernel": (uniform_fan_in(dim), (dim, classes)), "bias": (uniform_fan_in(dim), (classes,))}


def proxies(options: Any, classes: int, dim: int) -> Shapes:
    """One proxy per class, N(0, 2 / C) as in Proxy-Anchor's code.

    Only the direction of a proxy enters the loss; its length determines how fast it turns.
    """
    return {"proxies": (normal_init((2 / classes) ** 0.5), (classes, dim))}


def centers(options: SoftTriple, classes: int, dim: int) -> Shapes:
    """Several proxies per class."""
    return {"proxies": (normal_init((2 / classes) ** 0.5), (classes, options.centers, dim))}


def boundaries(options: Margin, classes: int, dim: int) -> Shapes:
    return {"beta": (nn.initializers.constant(options.beta), (classes,))}


class Entry(NamedTuple):
    """A loss that a baseline can be trained with.

    Attributes:
      options: dataclass of its options.
      loss: (embeddings [N, D], labels [N], **options, **parameters) -> scalar. A parameter takes precedence over the
        option of the same name, its initial value.
      parameters: (options, classes C, D) -> the parameters it learns.
      logits: (options, parameters, embeddings [N, D]) -> class scores [N, C] without margins; None if the loss does not
        train a classifier.
      compares_pairs: `loss` takes `candidates`, so that the embeddings can be compared with a memory of past batches.
      mines: `loss` takes a random `key`.
    """

    options: type
    loss: Callable[..., jax.Array]
    parameters: Callable[[Any, int, int], Shapes] = no_parameters
    logits: Callable[[Any, Params, jax.Array], jax.Array] | None = None
    compares_pairs: bool = False
    mines: bool = False


def soft_triple(embeddings: jax.Array, labels: jax.Array, *, centers: int, **options: Any) -> jax.Array:
    """`losses.soft_triple`; the number of centers is that of the proxies."""
    return losses.soft_triple(embeddings, labels, **options)


LOSSES: dict[str, Entry] = {
    "cross_entropy": Entry(CrossEntropy, losses.softmax, classifier, lambda o, p, x: linear_logits(x, **p)),
    "normalized_softmax": Entry(
        NormalizedSoftmax, losses.normalized_softmax, proxies, lambda o, p, x: cosine(x, p["proxies"]) / o.temperature
    ),
    "arcface": Entry(ArcFace, losses.arcface, proxies, lambda o, p, x: o.scale * cosine(x, p["proxies"])),
    "cosface": Entry(CosFace, losses.cosface, proxies, lambda o, p, x: o.scale * cosine(x, p["proxies"])),
    "proxy_nca": Entry(ProxyNCA, losses.proxy_nca, proxies),
    "proxy_nca_pp": Entry(ProxyNCAPP, losses.proxy_nca_pp, proxies),
    "proxy_anchor": Entry(ProxyAnchor, losses.proxy_anchor, proxies),
    "soft_triple": Entry(SoftTriple, soft_triple, centers),
    "contrastive": Entry(Contrastive, losses.contrastive, compares_pairs=True),
    "triplet": Entry(Triplet, losses.triplet, compares_pairs=True, mines=True),
    "margin": Entry(Margin, losses.margin, boundaries, compares_pairs=True, mines=True),
    "n_pair": Entry(NPair, losses.n_pair, compares_pairs=True, mines=True),
    "lifted_structure": Entry(LiftedStructure, losses.lifted_structure, compares_pairs=True),
    "multi_similarity": Entry(MultiSimilarity, losses.multi_similarity, compares_pairs=True),
}
PAIR_LOSSES = tuple(name for name, entry in LOSSES.items() if entry.compares_pairs)
