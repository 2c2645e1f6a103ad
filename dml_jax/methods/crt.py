"""CRT: coded residual transform for generalizable deep metric learning (Kan, Liang, Li, Cen, Wang, He, NeurIPS 2022).

A feature map of P vectors x_j is coded by its residuals to K learned prototypes c_k, in two branches of different
embedding size that must agree on the similarities of the batch (equation numbers of the paper):

    r_k   = sum_j softplus(<x_j, c_k>) (x_j - c_k)                                              (1)
    f     = 1/K sum_k Gamma_k(r_k)                  Gamma_k: linear, GELU, linear               (2)
    L_DIV = mean over k != l of |cos(c_k, c_l)|                                                 (3)
    S_ij  = cos(f_i, f_j)                                                                       (4)
    L_CON = |S(1) - S(2)|_1                                                                     (5)
    L     = w_div L_DIV + sum over branches b of lambda1_b L_MS(f_b) + lambda2 L_CON

L_MS is the multi-similarity loss. Branch 1 gives the embedding that is tested. There is no public code; what the
paper leaves open is an option here, named in `Config`. The main numbers are with shared prototypes and K = 64
(sections 3.3 and 4.4 differ: the 49 and 64 prototypes of the example cannot be shared).

Expected R@1 with MiT-B2, 128-d: CUB 78.98, Cars196 91.16, SOP 83.41, In-Shop 94.48; with ResNet-50: 64.20, 83.29,
78.97, 92.38, where the multi-similarity loss alone gives 62.64, 79.92, 76.49, 90.11 (Tables 3 to 5).
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp

from dml_jax.backbones.contract import Backbone
from dml_jax.config_schema import require
from dml_jax.errors import ConfigError
from dml_jax.losses import multi_similarity as ms
from dml_jax.losses import pairs
from dml_jax.losses.norms import at_least_float32, unit
from dml_jax.methods import heads
from dml_jax.methods.contract import Batch, Method

GROUPS = ("backbone", "prototypes", "embedding")
BRANCHES = ("branch1", "branch2")
HIGHEST = jax.lax.Precision.HIGHEST


@dataclass(frozen=True)
class Config:
    """Options of CRT; the defaults are those of CUB and Cars196. Pairs of values are those of branch 1 and 2."""

    name: str = "crt"
    embedding_dims: tuple[int, int] = (128, 1024)
    prototypes: tuple[int, int] = (64, 64)  # K1, K2
    hidden_dim: int = 512  # width inside Gamma; the paper does not give it
    sharing: Literal["shared", "separate"] = "shared"  # prototypes and first layers of Gamma serve both branches
    gamma: Literal["per_prototype", "single"] = "per_prototype"  # single: one Gamma for all prototypes (Table 7)
    transform: Literal["residual", "average"] = "residual"  # average: pooled features instead (Table 6, "-CRT")
    lambda1: tuple[float, float] = (
        1.0,
        0.1,
    )  # weights of the multi-similarity losses; (1.0, 0.9) on SOP, In-Shop
    lambda2: float = 0.9  # weight of the consistency loss
    w_div: float = 1.0  # weight of the diversity loss, once for each set of prototypes
    consistency: Literal["mean", "sum"] = "mean"  # over the N^2 entries; as printed it is the sum
    multi_similarity: ms.Options = field(default_factory=ms.Options)

    def __post_init__(self) -> None:
        require(min(self.embedding_dims) > 0, "method.embedding_dims", self.embedding_dims, "must be positive")
        require(min(self.prototypes) > 0, "method.prototypes", self.prototypes, "must be positive")
        require(self.hidden_dim > 0, "method.hidden_dim", self.hidden_dim, "must be positive")
        require(
            self.sharing != "shared" or self.prototypes[0] == self.prototypes[1],
            "method.prototypes",
            self.prototypes,
            "branches that share prototypes need the same number; make them equal or set method.sharing=separate",
        )
        require(min(self.lambda1) >= 0, "method.lambda1", self.lambda1, "must not be negative")
        require(self.lambda2 >= 0, "method.lambda2", self.lambda2, "must not be negative")
        require(self.w_div >= 0, "method.w_div", self.w_div, "must not be negative")


def coded_residuals(prototypes: jax.Array, features: jax.Array) -> jax.Array:
    """Equation 1, with the residuals summed before they are formed: sum_j s_kj x_j - (sum_j s_kj) c_k.

    Args:
      prototypes: float [K, L].
      features: float [N, P, L], the vectors of each feature map.

    Returns:
      r, float [N, K, L], at least float32. A sum over positions: its scale grows with P.
    """
    features = at_least_float32(features)
    s = jax.nn.softplus(jnp.einsum("npl,kl->npk", features, prototypes, precision=HIGHEST))
    weighted = jnp.einsum("npk,npl->nkl", s, features, precision=HIGHEST)
    return weighted - s.sum(axis=1)[:, :, None] * prototypes[None]


def hidden(params: dict[str, jax.Array], residuals: jax.Array) -> jax.Array:
    """First half of Gamma: linear layer and exact GELU.

    Args:
      params: kernel [K, L, h] and bias [K, h], one per prototype; [1, L, h] and [1, h] where all share one.
      residuals: float [N, K, L].

    Returns:
      float [N, K, h].
    """
    kernel, bias = params["kernel"], params["bias"]
    shared = len(kernel) == 1
    x = residuals @ kernel[0] if shared else jnp.einsum("nkl,klh->nkh", residuals, kernel)
    return jax.nn.gelu(x + bias[None], approximate=False)


def project(params: dict[str, jax.Array], activations: jax.Array) -> jax.Array:
    """Second half of Gamma, and the mean over the prototypes (equation 2), which needs no [N, K, d].

    Args:
      params: kernel [K, h, d] and bias [K, d], or [1, h, d] and [1, d].
      activations: float [N, K, h].

    Returns:
      f, float [N, d], of any length.
    """
    kernel, bias = params["kernel"], params["bias"]
    n, k, h = activations.shape
    if len(kernel) == 1:
        total = activations.sum(axis=1) @ kernel[0]
    else:
        total = activations.reshape(n, k * h) @ kernel.reshape(k * h, -1)
    return total / k + bias.mean(axis=0)[None]


def transform(params: Any, features: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Raw embeddings of both branches.

    Args:
      params: "branch1" and "branch2"; a branch without prototypes of its own uses those of branch 1 and its
        activations, and one whose parameters are only a linear layer embeds the averaged features.
      features: float [N, P, L].

    Returns:
      f1 [N, d1], f2 [N, d2].
    """
    if "prototypes" not in params["branch1"]:
        average = at_least_float32(features).mean(axis=1)
        f1, f2 = (heads.linear(params[branch]["output"], average) for branch in BRANCHES)
        return f1, f2
    embeddings = []
    for branch in BRANCHES:
        own = params[branch]
        if "prototypes" in own:
            activations = hidden(own["hidden"], coded_residuals(own["prototypes"], features))
        embeddings.append(project(own["output"], activations))
    return embeddings[0], embeddings[1]


def diversity(prototypes: jax.Array) -> jax.Array:
    """Equation 3: mean absolute cosine between different prototypes [K, L]; 0 where there is only one."""
    k = len(prototypes)
    correlation = jnp.abs(pairs.cosine(prototypes, prototypes))
    return jnp.sum(correlation, where=~jnp.eye(k, dtype=bool)) / max(k * (k - 1), 1)


def consistency(similarity1: jax.Array, similarity2: jax.Array, kind: Literal["mean", "sum"]) -> jax.Array:
    """Equation 5 on the similarity matrices [N, N] of the two branches: mean or sum of |S(1) - S(2)|."""
    difference = jnp.abs(similarity1 - similarity2)
    return difference.mean() if kind == "mean" else difference.sum()


def criterion(
    params: Any, features: jax.Array, labels: jax.Array, config: Config
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """L of a batch.

    Args:
      params: "branch1", "branch2".
      features: float [N, P, L].
      labels: int [N].
      config: the options.

    Returns:
      (scalar, terms): each loss unweighted, and how many pairs the mining left in each branch.
    """
    positive, negative = pairs.masks(labels)
    total = jnp.zeros(())
    terms: dict[str, jax.Array] = {}
    similarities = []
    for i, f in enumerate(transform(params, features)):
        similarity = pairs.cosine(f, f)
        value, counts = ms.multi_similarity(similarity, positive, negative, config.multi_similarity)
        total = total + config.lambda1[i] * value
        terms |= {f"multi_similarity{i + 1}": value} | {f"{name}{i + 1}": count for name, count in counts.items()}
        similarities.append(similarity)
        if "prototypes" in params[BRANCHES[i]]:
            terms[f"diversity{i + 1}"] = diversity(params[BRANCHES[i]]["prototypes"])
            total = total + config.w_div * terms[f"diversity{i + 1}"]
    terms["consistency"] = consistency(similarities[0], similarities[1], config.consistency)
    return total + config.lambda2 * terms["consistency"], terms


def _stacked_linear_init(key: jax.Array, count: int, inputs: int, outputs: int) -> dict[str, jax.Array]:
    """`count` independent linear layers: kernel [count, inputs, outputs], bias [count, outputs]."""
    return jax.vmap(lambda k: heads.linear_init(k, inputs, outputs))(jax.random.split(key, count))


def head_init(key: jax.Array, channels: int, config: Config) -> dict[str, Any]:
    """Parameters of both branches on feature maps of `channels`: linear layers as torch initialises them.

    The prototypes are the rows of such a layer too, U(±1/sqrt(L)); the paper does not say.
    """
    params: dict[str, Any] = {}
    for i, branch in enumerate(BRANCHES):
        key, first, second, third = jax.random.split(key, 4)
        dim = config.embedding_dims[i]
        if config.transform == "average":
            params[branch] = {"output": heads.linear_init(third, channels, dim)}
            continue
        k = config.prototypes[i]
        networks = k if config.gamma == "per_prototype" else 1
        params[branch] = {"output": _stacked_linear_init(third, networks, config.hidden_dim, dim)}
        if config.sharing == "separate" or branch == "branch1":
            params[branch]["prototypes"] = heads.linear_init(first, channels, k)["kernel"].T
            params[branch]["hidden"] = _stacked_linear_init(second, networks, channels, config.hidden_dim)
    return params


def build(config: Config, backbone: Backbone, num_classes: int) -> Method:
    """CRT on a backbone's feature map.

    Raises:
      ConfigError: fewer than two training classes, for which the loss has no negative pair.
    """
    if num_classes < 2:
        raise ConfigError(f"method.name='crt': needs two training classes for negative pairs, data has {num_classes}")

    def init(key: jax.Array, batch: Batch) -> tuple[Any, Any]:
        body, head = jax.random.split(key)
        params, stats = backbone.init(body, batch.images.shape[2:4])
        return {"backbone": params} | head_init(head, backbone.channels, config), {"backbone": stats}

    features = heads.forward(backbone, lambda params, x: x.reshape(len(x), -1, x.shape[-1]))

    def loss(params: Any, state: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, tuple[Any, dict[str, Any]]]:
        x, stats = features(params, state, batch.images[0], train=True, key=key)
        total, terms = criterion(params, x, batch.labels, config)
        return total, ({"backbone": stats}, terms)

    def embed(params: Any, state: Any, images: jax.Array) -> jax.Array:
        x, _ = features(params, state, images, train=False)
        return unit(transform(params, x)[0])

    def group(path: tuple[str, ...]) -> str:
        if path[0] == "backbone":
            return "backbone"
        return "prototypes" if "prototypes" in path else "embedding"

    return Method(init, loss, embed, GROUPS, group)
