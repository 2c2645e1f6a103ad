"""The losses a baseline can be trained with: one entry of LOSSES per loss.

The options of a loss, `method.<loss>.<option>` in a configuration, are in `dml_jax.losses.options`; the losses
themselves are functions of `dml_jax.losses`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from flax.typing import Initializer

from dml_jax import losses
from dml_jax.backbones.initializers import normal_init, uniform_fan_in
from dml_jax.losses import active_pairs
from dml_jax.losses.classification import linear_logits, nearest_center
from dml_jax.losses.options import Margin, SoftTriple, SubCenterArcFace
from dml_jax.losses.pairwise import class_cosine

Params = dict[str, jax.Array]
Shapes = dict[str, tuple[Initializer, tuple[int, ...]]]  # initialiser and shape by name


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


def centers(options: SoftTriple | SubCenterArcFace, classes: int, dim: int) -> Shapes:
    """Several proxies per class."""
    return {"proxies": (normal_init((2 / classes) ** 0.5), (classes, options.centers, dim))}


def boundaries(options: Margin, classes: int, dim: int) -> Shapes:
    return {"beta": (nn.initializers.constant(options.beta), (classes,))}


class Entry(NamedTuple):
    """A loss that a baseline can be trained with.

    Attributes:
      loss: (embeddings [N, D], labels [N], **options, **parameters) -> scalar; those in PAIR_LOSSES also take
        `candidates`. A parameter takes precedence over the option of the same name, its initial value.
      parameters: (options, classes C, D) -> the parameters it learns.
      logits: (options, parameters, embeddings [N, D]) -> class scores [N, C] without margins; None if the loss does not
        train a classifier.
      mines: `loss` takes a random `key`.
      active: takes the arguments of `loss` without candidates; see `Hooks.active_pairs`.
    """

    loss: Callable[..., jax.Array]
    parameters: Callable[[Any, int, int], Shapes] = no_parameters
    logits: Callable[[Any, Params, jax.Array], jax.Array] | None = None
    mines: bool = False
    active: Callable[..., jax.Array] | None = None


def without_centers(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The loss without the option `centers`, as their number is that of the proxies."""
    return lambda embeddings, labels, *, centers, **options: loss(embeddings, labels, **options)


LOSSES: dict[str, Entry] = {
    "cross_entropy": Entry(losses.softmax, classifier, lambda o, p, x: linear_logits(x, **p)),
    "normalized_softmax": Entry(
        losses.normalized_softmax, proxies, lambda o, p, x: class_cosine(x, p["proxies"]) / o.temperature
    ),
    "arcface": Entry(losses.arcface, proxies, lambda o, p, x: o.scale * class_cosine(x, p["proxies"])),
    "subcenter_arcface": Entry(
        without_centers(losses.subcenter_arcface), centers, lambda o, p, x: o.scale * nearest_center(x, p["proxies"])
    ),
    "cosface": Entry(losses.cosface, proxies, lambda o, p, x: o.scale * class_cosine(x, p["proxies"])),
    "proxy_nca": Entry(losses.proxy_nca, proxies),
    "proxy_nca_pp": Entry(losses.proxy_nca_pp, proxies),
    "proxy_anchor": Entry(losses.proxy_anchor, proxies),
    "soft_triple": Entry(without_centers(losses.soft_triple), centers),
    "contrastive": Entry(losses.contrastive, active=active_pairs.contrastive),
    "triplet": Entry(losses.triplet, mines=True, active=active_pairs.triplet),
    "margin": Entry(losses.margin, boundaries, mines=True, active=active_pairs.margin),
    "n_pair": Entry(losses.n_pair, mines=True),
    "lifted_structure": Entry(losses.lifted_structure),
    "multi_similarity": Entry(losses.multi_similarity, active=active_pairs.multi_similarity),
    "circle": Entry(losses.circle),
    "sup_con": Entry(losses.sup_con),
    "smooth_ap": Entry(losses.smooth_ap),
    "recall_at_k": Entry(losses.recall_at_k),
}
