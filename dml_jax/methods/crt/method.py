"""CRT: coded residual transform for generalizable deep metric learning.

Kan, Liang, Li, Cen, Wang, He, NeurIPS 2022.

The P vectors x_j of a feature map are encoded by their residuals to K learned prototypes c_k. Two
such branches, with embeddings of different lengths, must agree on the similarities within the batch
(equation numbers of the paper):

    r_k   = sum_j softplus(<x_j, c_k>) (x_j - c_k)                                              (1)
    f     = 1/K sum_k Gamma_k(r_k)                  Gamma_k: linear, GELU, linear               (2)
    L_DIV = mean over k != l of |cos(c_k, c_l)|                                                 (3)
    S_ij  = cos(f_i, f_j)                                                                       (4)
    L_CON = |S(1) - S(2)|_1                                                                     (5)
    L     = w_div L_DIV + sum over branches b of lambda1_b L_MS(f_b) + lambda2 L_CON

L_MS is the multi-similarity loss. Branch 1 computes the embedding for retrieval. No code is public;
where the paper leaves a choice open, `Config` has an option. The paper's main results use shared
prototypes and K = 64 (sections 3.3 and 4.4 disagree: branches with 49 and 64 prototypes, as in the
example, could not share them).

Expected R@1 with MiT-B2, 128-d: CUB 78.98, Cars196 91.16, SOP 83.41, In-Shop 94.48; with ResNet-50:
64.20, 83.29, 78.97, 92.38, compared with 62.64, 79.92, 76.49, 90.11 for the multi-similarity loss
alone (Tables 3 to 5).
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import Dense, uniform_fan_in
from dml_jax.config.fields import Effect, NonNegative, PositiveInt, Rules, require, section
from dml_jax.config.modules import options
from dml_jax.losses import pairwise
from dml_jax.losses import similarity_losses as ms
from dml_jax.methods import heads
from dml_jax.methods.contract import Aux, Batch, Hooks, Method, PyTree, TrainingSet
from dml_jax.numerics import at_least_float32, product, unit

MultiSimilarity = options(ms.multi_similarity)
GROUPS = ("backbone", "prototypes", "embedding")  # parameter groups


@section
class Config:
    """Options of CRT, with the defaults for CUB and Cars196. Pairs contain one value per branch.

    Attributes:
      name: Module of dml_jax/methods, or an import path.
      embedding_dims: Lengths d1 and d2 of the embeddings.
      prototypes: Numbers K1 and K2 of prototypes.
      hidden_dim: Width of the hidden layer of Gamma; not stated in the paper.
      sharing: Whether branch 2 uses branch 1's prototypes and hidden layers, or has its own.
      gamma: One Gamma per prototype, or a "single" Gamma for all (Table 7).
      transform: Input of the branches: coded residuals ("residual"), or average-pooled features
        ("average"; Table 6, "-CRT"). Two values are placebos: weights and residuals belong to
        different prototypes ("shuffled"), or all prototypes are fixed to 0, so that every Gamma
        gets the pooled features ("wide_average").
      lambda1: Weights of the multi-similarity loss; (1.0, 0.9) on SOP and In-Shop.
      lambda2: Weight of the consistency loss.
      w_div: Weight of the diversity of each set of prototypes.
      consistency: Mean or sum over the N^2 entries of the consistency loss; a sum in the paper.
      tested_branch: Branch whose embedding is used at test time.
      multi_similarity: Options of the multi-similarity loss.
    """

    name: str = "crt"
    embedding_dims: tuple[PositiveInt, PositiveInt] = (128, 1024)
    prototypes: tuple[PositiveInt, PositiveInt] = (64, 64)
    hidden_dim: PositiveInt = 512
    sharing: Literal["shared", "separate"] = "shared"
    gamma: Literal["per_prototype", "single"] = "per_prototype"
    transform: Literal["residual", "average", "shuffled", "wide_average"] = "residual"
    lambda1: tuple[NonNegative, NonNegative] = (1.0, 0.1)
    lambda2: NonNegative = 0.9
    w_div: NonNegative = 1.0
    consistency: Literal["mean", "sum"] = "mean"
    tested_branch: Annotated[Literal["branch1", "branch2"], Effect.EMBEDDING] = "branch1"
    multi_similarity: MultiSimilarity = MultiSimilarity()  # type: ignore[valid-type]

    def __post_init__(self) -> None:
        equal = self.sharing != "shared" or self.prototypes[0] == self.prototypes[1]
        rule = "branches that share prototypes need the same number; or set sharing=separate"
        require(equal, "prototypes", self.prototypes, rule)
        trained = self.lambda1[self.tested_branch == "branch2"] > 0
        rule = f"has weight 0 in lambda1={self.lambda1}, so labels do not train it; use the other"
        require(trained, "tested_branch", self.tested_branch, rule)

    def inert(self, config: Any) -> Rules:
        """What options need; see `config.fields.inert`."""
        has_prototypes = self.transform in ("residual", "shuffled")
        return (
            (
                self.transform != "average",
                "method.transform other than 'average'",
                *("prototypes", "hidden_dim", "sharing", "gamma"),
            ),
            (has_prototypes, "method.transform='residual' or 'shuffled'", "w_div"),
            (self.lambda2, "method.lambda2", "consistency"),
        )


BRANCHES = ("branch1", "branch2")


def coded_residuals(prototypes: Array, features: Array, origins: Array | None = None) -> Array:
    """Equation 1 without forming [N, P, K, L]: sum_j s_kj x_j - (sum_j s_kj) c_k.

    Prototypes [K, L] and features [N, P, L] -> r [N, K, L], sums over positions, which grow with P.
    `origins` [K, L] replace c_k.
    """
    features = at_least_float32(features)
    s = jax.nn.softplus(product("npl,kl->npk", features, prototypes))
    weighted = product("npk,npl->nkl", s, features)
    origins = prototypes if origins is None else origins
    return weighted - s.sum(axis=1)[:, :, None] * origins[None]


def prototype_statistics(prototypes: Array, features: Array) -> dict[str, float]:
    """Statistics of the weights s_kj of a position, divided by their sum over k.

    Returns the mean of KL(weights of a position || uniform) in nats, which is 0 if all prototypes
    have the same weight; and the share of prototypes in use, exp(entropy of the mean weights) / K.
    """
    s = np.asarray(jax.nn.softplus(product("npl,kl->npk", features, prototypes)), np.float64)
    shares = s / s.sum(axis=-1, keepdims=True)
    mean, k = shares.mean(axis=(0, 1)), len(prototypes)
    divergence = np.sum(shares * np.log(np.maximum(shares, 1e-30) * k), axis=-1).mean()
    entropy = -np.sum(mean * np.log(np.maximum(mean, 1e-30)))
    return {
        "prototype_divergence": float(divergence),
        "prototypes_used": float(np.exp(entropy) / k),
    }


class GammaHidden(nn.Module):
    """First half of Gamma: linear layer and exact GELU; `count` is 1 if prototypes share it."""

    count: int
    features: int

    @nn.compact
    def __call__(self, residuals: Array) -> Array:
        """Residuals r [N, K, L] -> [N, K, h]."""
        kernel, bias = _stacked_layers(self, self.count, residuals.shape[-1], self.features)
        if self.count == 1:
            x = product("nkl,lh->nkh", residuals, kernel[0])
        else:
            x = product("nkl,klh->nkh", residuals, kernel)
        return jax.nn.gelu(x + bias[None], approximate=False)


class GammaOutput(nn.Module):
    """Second half of Gamma and the mean over prototypes (equation 2), without forming [N, K, d]."""

    count: int
    features: int

    @nn.compact
    def __call__(self, activations: Array) -> Array:
        """Activations [N, K, h] -> f [N, d], not normalised."""
        n, k, h = activations.shape
        kernel, bias = _stacked_layers(self, self.count, h, self.features)
        if self.count == 1:
            total = product("nh,hd->nd", activations.sum(axis=1), kernel[0])
        else:
            total = product("ni,id->nd", activations.reshape(n, k * h), kernel.reshape(k * h, -1))
        return total / k + bias.mean(axis=0)[None]


def _stacked_layers(
    module: nn.Module, count: int, inputs: int, outputs: int
) -> tuple[Array, Array]:
    """Kernel [count, inputs, outputs] and bias, initialised like those of torch.nn.Linear."""
    init = uniform_fan_in(inputs)
    kernel = module.param("kernel", init, (count, inputs, outputs))
    return kernel, module.param("bias", init, (count, outputs))


class Branch(nn.Module):
    """One of the two branches; `index`, 0 or 1, selects its values in the options.

    The paper does not state the initial prototypes; here they are U(±1/sqrt(L)), like the weights
    of a linear layer.
    """

    config: Config
    index: int

    @nn.compact
    def __call__(self, features: Array, shared: Array | None = None) -> tuple[Array, Array | None]:
        """Features [N, P, L] -> (f [N, d], activations [N, K, h] or None); `shared` activations
        replace the branch's prototypes and hidden layers."""
        config, dim = self.config, self.config.embedding_dims[self.index]
        if config.transform == "average":
            return Dense(dim, name="output")(at_least_float32(features).mean(axis=1)), None
        k, channels, hidden = config.prototypes[self.index], features.shape[-1], shared
        count = k if config.gamma == "per_prototype" else 1
        if hidden is None:
            if config.transform == "wide_average":
                prototypes, shift = jnp.zeros((k, channels)), 0
            else:
                prototypes = self.param("prototypes", uniform_fan_in(channels), (k, channels))
                shift = int(config.transform == "shuffled")
            residuals = coded_residuals(prototypes, features, jnp.roll(prototypes, shift, axis=0))
            hidden = GammaHidden(count, config.hidden_dim, name="hidden")(residuals)
        return GammaOutput(count, dim, name="output")(hidden), hidden


class Branches(nn.Module):
    """Both branches; with shared prototypes, branch 2 adds only an output layer."""

    config: Config

    @nn.compact
    def __call__(self, features: Array) -> tuple[Array, Array]:
        """Feature maps [N, P, L] or [N, h, w, L] -> f1 [N, d1], f2 [N, d2], not normalised."""
        features = features.reshape(features.shape[0], -1, features.shape[-1])
        f1, hidden = Branch(self.config, 0, name=BRANCHES[0])(features)
        shared = hidden if self.config.sharing == "shared" else None
        f2, _ = Branch(self.config, 1, name=BRANCHES[1])(features, shared)
        return f1, f2


def diversity(prototypes: Array) -> Array:
    """Equation 3: mean absolute cosine between different prototypes [K, L]; 0 if K = 1."""
    k = len(prototypes)
    correlation = jnp.abs(pairwise.cosine(prototypes, prototypes))
    return jnp.sum(correlation, where=~jnp.eye(k, dtype=bool)) / max(k * (k - 1), 1)


def consistency(similarity1: Array, similarity2: Array, kind: Literal["mean", "sum"]) -> Array:
    """Equation 5: mean or sum of |S(1) - S(2)| over the similarities [N, N] of both branches."""
    difference = jnp.abs(similarity1 - similarity2)
    return difference.mean() if kind == "mean" else difference.sum()


def loss(
    prototypes: Sequence[Array], embeddings: tuple[Array, Array], labels: Array, config: Config
) -> tuple[Array, dict[str, Array]]:
    """(L, terms) of a batch; the terms are the unweighted losses and the numbers of mined pairs.

    Prototypes [K, L] are those of each branch; embeddings f1 [N, d1], f2 [N, d2] have any norm.
    """
    positive, negative = pairwise.masks(labels)
    s1, s2 = (pairwise.cosine(f, f) for f in embeddings)
    terms = {"consistency": consistency(s1, s2, config.consistency)}
    total = config.lambda2 * terms["consistency"]
    for b, (similarity, weight) in enumerate(zip((s1, s2), config.lambda1, strict=True), start=1):
        settings = vars(config.multi_similarity)
        losses, p, n = ms.multi_similarity_terms(similarity, positive, negative, **settings)
        value = pairwise.reduce_terms(losses, None)
        terms |= {f"multi_similarity{b}": value, f"positives{b}": p.sum(), f"negatives{b}": n.sum()}
        total += weight * value
    for b, c in enumerate(prototypes, start=1):
        terms[f"diversity{b}"] = diversity(c)
        total += config.w_div * terms[f"diversity{b}"]
    return total, terms


def own_prototypes(params: PyTree) -> list[Array]:
    """The prototypes [K, L] of each branch that has prototypes in `params`."""
    return [params[branch]["prototypes"] for branch in BRANCHES if "prototypes" in params[branch]]


def build(config: Config, backbone: Backbone, data: TrainingSet) -> Method:
    """CRT on a backbone's feature map; needs at least two training classes for negative pairs."""
    data.check_classes(2, "method.name='crt'")
    branches = Branches(config)

    def init(key: Array, batch: Batch) -> tuple[PyTree, PyTree]:
        return heads.init(backbone, branches, jax.random.split(key), batch)

    encode = heads.encoder(backbone, branches)

    def batch_loss(
        params: PyTree, model_state: PyTree, encoded: PyTree, batch: Batch, step: Array, key: Array
    ) -> tuple[Array, Aux]:
        value, terms = loss(own_prototypes(params), encoded, batch.labels, config)
        return value, Aux(model_state, terms)

    def embed(params: PyTree, model_state: PyTree, images: Array) -> Array:
        branches, _ = encode(params, model_state, images[None], train=False)
        # Under jit, the compiler removes the unused branch.
        return unit(branches[BRANCHES.index(config.tested_branch)])

    def group(path: tuple[str, ...]) -> str:
        if path[0] == "backbone":
            return "backbone"
        return "prototypes" if "prototypes" in path else "embedding"

    def diagnose(
        params: PyTree, model_state: PyTree, images: Array, labels: np.ndarray
    ) -> dict[str, float]:
        variables, inputs = (params["backbone"], model_state["backbone"]), images[0]
        apply = jax.jit(partial(backbone.apply, train=False))
        maps, _ = apply(*variables, backbone.preprocess(inputs))
        features = at_least_float32(maps.reshape(len(maps), -1, maps.shape[-1]))
        return prototype_statistics(params[BRANCHES[0]]["prototypes"], features)

    hooks = Hooks(whole_maps=True, diagnose=diagnose if config.transform == "residual" else None)
    return Method(init, encode, batch_loss, embed, GROUPS, group, hooks=hooks)
