"""The losses a baseline can be trained with: one entry of LOSSES per loss.

The losses and the sections of their options, `method.<loss>.<option>` in a configuration, are in `dml_jax.losses`. A
loss of another package is an `Entry` in one of its modules, `method.loss="mypaper.losses.my_loss"`; its options are
below the last part of that name, `method.my_loss`.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
from flax.typing import Initializer

from dml_jax import losses
from dml_jax.backbones.initializers import normal_init, uniform_fan_in
from dml_jax.config.modules import imported
from dml_jax.errors import ConfigError, suggest
from dml_jax.losses import (
    classification,
    coding_rate,
    pair_losses,
    proxies,
    ranking,
    similarity_losses,
)
from dml_jax.losses.classification import dynamic_margins, linear_logits, nearest_center
from dml_jax.losses.pairwise import class_cosine

Params = dict[str, jax.Array]
Shapes = dict[str, tuple[Initializer, tuple[int, ...]]]  # initialiser and shape by name


def no_parameters(options: Any, classes: int, dim: int) -> Shapes:
    return {}


def classifier(options: Any, classes: int, dim: int) -> Shapes:
    """A linear layer, initialised like torch.nn.Linear."""
    return {"kernel": (uniform_fan_in(dim), (dim, classes)), "bias": (uniform_fan_in(dim), (classes,))}


def class_proxies(options: Any, classes: int, dim: int) -> Shapes:
    """One proxy per class, N(0, 2 / C) as in Proxy-Anchor's code.

    Only the direction of a proxy enters the loss; its length determines how fast it turns.
    """
    return {"proxies": (normal_init((2 / classes) ** 0.5), (classes, dim))}


def class_centers(options: Any, classes: int, dim: int) -> Shapes:
    """Several proxies per class."""
    return {"proxies": (normal_init((2 / classes) ** 0.5), (classes, options.centers, dim))}


def boundaries(options: Any, classes: int, dim: int) -> Shapes:
    return {"beta": (nn.initializers.constant(options.beta), (classes,))}


@dataclass(frozen=True)
class Entry:
    """A loss that a baseline can be trained with.

    Attributes:
      options: the section of its options.
      loss: (embeddings [N, D], labels [N], **options, **parameters) -> scalar. A parameter takes precedence over the
        option of the same name, its initial value. A loss that mines at random takes `key`. One that compares pairs of
        embeddings takes `candidates`, so that it can also compare a batch with a memory of past ones. One that takes
        `sizes` is given the number of images of each class, [C]; `weights` of the anchors, [N], are for
        `method.class_weights`.
      parameters: (options, classes C, D) -> the parameters it learns.
      logits: (options, parameters, embeddings [N, D]) -> class scores [N, C] without margins; None if the loss does not
        train a classifier.
    """

    options: Any
    loss: Callable[..., jax.Array]
    parameters: Callable[[Any, int, int], Shapes] = no_parameters
    logits: Callable[[Any, Params, jax.Array], jax.Array] | None = None

    @property
    def mines(self) -> bool:
        """Whether the loss takes a random key."""
        return "key" in inspect.signature(self.loss).parameters

    @property
    def compares_pairs(self) -> bool:
        """Whether the loss takes candidates."""
        return "candidates" in inspect.signature(self.loss).parameters

    @property
    def takes_sizes(self) -> bool:
        """Whether the loss depends on the sizes of the classes."""
        return "sizes" in inspect.signature(self.loss).parameters

    @property
    def takes_weights(self) -> bool:
        """Whether the loss can weight its anchors."""
        parameters = inspect.signature(self.loss).parameters.values()
        return any(p.name == "weights" or p.kind is p.VAR_KEYWORD for p in parameters)


def without_centers(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The loss without the option `centers`, as their number is that of the proxies."""
    return lambda embeddings, labels, *, centers, **options: loss(embeddings, labels, **options)


def with_class_margins(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The loss with `dynamic_margins` where its options ask for them."""

    def call(
        embeddings: jax.Array, labels: jax.Array, *, margin: float, size_power: float, size_floor: float,
        sizes: jax.Array | None = None, **options: Any,
    ) -> jax.Array:  # fmt: skip
        if size_power or size_floor:
            assert sizes is not None  # a method without a training set has no loss
            options["margin"] = dynamic_margins(sizes, a=margin, power=size_power, b=size_floor)
        else:
            options["margin"] = margin
        return loss(embeddings, labels, **options)

    return call


LOSSES: dict[str, Entry] = {
    "cross_entropy": Entry(
        classification.CrossEntropy, losses.softmax, classifier, logits=lambda o, p, x: linear_logits(x, **p)
    ),
    "normalized_softmax": Entry(
        classification.NormalizedSoftmax, losses.normalized_softmax, class_proxies,
        logits=lambda o, p, x: class_cosine(x, p["proxies"]) / o.temperature,
    ),
    "arcface": Entry(
        classification.ArcFace, with_class_margins(losses.arcface), class_proxies,
        logits=lambda o, p, x: o.scale * class_cosine(x, p["proxies"]),
    ),
    "subcenter_arcface": Entry(
        classification.SubCenterArcFace, with_class_margins(without_centers(losses.subcenter_arcface)), class_centers,
        logits=lambda o, p, x: o.scale * nearest_center(x, p["proxies"]),
    ),
    "cosface": Entry(
        classification.CosFace, losses.cosface, class_proxies,
        logits=lambda o, p, x: o.scale * class_cosine(x, p["proxies"]),
    ),
    "proxy_nca": Entry(proxies.ProxyNCA, losses.proxy_nca, class_proxies),
    "proxy_nca_pp": Entry(proxies.ProxyNCAPP, losses.proxy_nca_pp, class_proxies),
    "proxy_anchor": Entry(proxies.ProxyAnchor, losses.proxy_anchor, class_proxies),
    "soft_triple": Entry(proxies.SoftTriple, without_centers(losses.soft_triple), class_centers),
    "contrastive": Entry(pair_losses.Contrastive, losses.contrastive),
    "triplet": Entry(pair_losses.Triplet, losses.triplet),
    "margin": Entry(pair_losses.Margin, losses.margin, boundaries),
    "n_pair": Entry(pair_losses.NPair, losses.n_pair),
    "lifted_structure": Entry(pair_losses.LiftedStructure, losses.lifted_structure),
    "multi_similarity": Entry(similarity_losses.MultiSimilarity, losses.multi_similarity),
    "circle": Entry(similarity_losses.Circle, losses.circle),
    "sup_con": Entry(similarity_losses.SupCon, losses.sup_con),
    "anti_collapse": Entry(coding_rate.AntiCollapse, losses.anti_collapse),
    "smooth_ap": Entry(ranking.SmoothAP, losses.smooth_ap),
    "recall_at_k": Entry(ranking.RecallAtK, losses.recall_at_k),
}  # fmt: skip
CLASSIFIERS = tuple(name for name, entry in LOSSES.items() if entry.logits)
PAIR_LOSSES = tuple(name for name, entry in LOSSES.items() if entry.compares_pairs)


def find(name: str, given: Any = None) -> Entry:
    """The entry of a loss, in LOSSES or in a module of another package, which must have been imported.

    `given` is the whole of `method.loss`, for the message of the ConfigError if there is none.
    """
    if name in LOSSES:
        return LOSSES[name]
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ConfigError(f"method.loss={(given or name)!r}: {suggest(name, LOSSES)}")
    key = f"method.loss={name!r}"
    entry = getattr(imported(key, module), attribute, None)
    if not isinstance(entry, Entry):
        raise ConfigError(f"{key}: {module} has no Entry (dml_jax.methods.baseline) called {attribute}")
    return entry


def section_name(loss: str) -> str:
    """The key of a loss's options: its name, without the module of another package."""
    return loss.rpartition(".")[2]
