"""The baselines' losses compared with their authors' code and the benchmark code of Roth et al.

Files: `hist/proxy_anchor*` (tjddus9597/Proxy-Anchor-CVPR2020) and `diva/losses*` (Confusezius' two repositories).
Excluded from the latter, because they differ from the papers: `arcface_diva_*` (the margin is added to every logit and
cancels) and `softtriplet_{loss,grad_emb,grad_intra_class_centroids}` (normalised across the centers, and weighted over
classes instead of centers).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.losses import classification, pairwise
from dml_jax.numerics import unit
from tests.golden import fixtures

ANCHORS = [n for n in fixtures.names("hist") if fixtures.load("hist", n)[1]["kind"] == "proxy_anchor"]
SUITES = fixtures.names("diva", "losses*")
EXCLUDED = ("arcface_diva_", "softtriplet_loss", "softtriplet_grad_emb")
EXCLUDED += ("softtriplet_grad_intra_class_centroids",)
INPUTS = {"emb", "labels", "triplets", "class_map", "proxynca_proxies", "softtriplet_centroids"}


def gradients(function: Any, *arguments: np.ndarray) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    gradient = jax.value_and_grad(function, argnums=tuple(range(len(arguments))))
    return jax.jit(gradient)(*map(jnp.asarray, arguments))


@pytest.mark.parametrize("name", ANCHORS)
def test_proxy_anchor(name: str, x64: None) -> None:
    z, meta = fixtures.load("hist", name)
    gate = meta["tolerance"]["float64"]
    labels = jnp.asarray(z["labels"])
    options = {"margin": float(z["margin"]), "alpha": float(z["alpha"])}
    loss, (grad_proxies, grad_embeddings) = gradients(
        lambda p, x: losses.proxy_anchor(x, labels, p, **options), z["proxies"], z["embeddings"]
    )
    found = {"cosine": jax.jit(pairwise.cosine)(z["embeddings"], z["proxies"]), "loss": loss}
    found |= {"grad_proxies": grad_proxies, "grad_embeddings": grad_embeddings}
    fixtures.compare(found, z, **gate)


def cases(z: dict[str, np.ndarray], meta: dict[str, Any]) -> dict[str, tuple[Any, str, str]]:
    """By loss: (function of parameters and unit embeddings, key of the parameters, key of their gradient)."""
    hyper = {key.removeprefix("loss_"): value for key, value in meta["hyper"].items()}
    labels, triplets = jnp.asarray(z["labels"]), z["triplets"]

    def multi_similarity(_: jax.Array, x: jax.Array) -> jax.Array:
        names = {"alpha": "pos_weight", "beta": "neg_weight", "base": "thresh", "epsilon": "margin"}
        options = {ours: hyper[f"multisimilarity_{theirs}"] for ours, theirs in names.items()}
        return losses.multi_similarity(x, labels, **options, copies="keep", divisor="active")

    def contrastive(_: jax.Array, x: jax.Array) -> jax.Array:
        # torch's PairwiseDistance adds 1e-6 to every difference.
        distance = lambda i: jnp.linalg.norm(x[triplets[:, 0]] - x[triplets[:, i]] + 1e-6, axis=1)  # noqa: E731
        both = jnp.stack([distance(1), distance(2)])
        chosen = jnp.array([[True], [False]]) & jnp.ones_like(both, bool)
        pairs = {"candidates": jnp.zeros((len(triplets), 1)), "distance": lambda a, b: both}
        names = {"positive_margin": "pos_margin", "negative_margin": "neg_margin"}
        margins = {ours: hyper[f"contrastive_{theirs}"] for ours, theirs in names.items()}
        masks = {"positive": chosen, "negative": ~chosen}
        return losses.contrastive(jnp.zeros((2, 1)), **pairs, **masks, **margins, divisor="all")

    def softmax(p: jax.Array, x: jax.Array) -> jax.Array:
        return losses.normalized_softmax(x, labels, p, temperature=hyper["softmax_temperature"])

    def arcface(p: jax.Array, x: jax.Array) -> jax.Array:
        # The reference clips cosines to [1e-10, 1 - 1e-10], so that negative ones have no gradient.
        cosines = jnp.clip(pairwise.cosine(x, p), 1e-10, 1 - 1e-10)
        margin = hyper["arcface_angular_margin"]
        shifted = classification.angular_margin(cosines, labels, margin=margin)
        return classification.cross_entropy(hyper["arcface_feature_scale"] * shifted, labels).mean()

    def soft_triple(columns: jax.Array, x: jax.Array) -> jax.Array:
        # The reference multiplies by gamma inside the softmax; the paper, and our option, divides.
        centers = columns.T.reshape(meta["C"], hyper["softtriplet_n_centroids"], -1)
        names = {"scale": "lambda", "margin": "margin_delta", "spread": "reg_weight"}
        options = {ours: hyper[f"softtriplet_{theirs}"] for ours, theirs in names.items()}
        gamma = 1 / hyper["softtriplet_gamma"]
        return losses.soft_triple(x, labels, centers, gamma=gamma, **options)

    def proxy_nca(p: jax.Array, x: jax.Array) -> jax.Array:
        return losses.proxy_nca(x, labels, p)

    return {
        "ms": (multi_similarity, "", ""),
        "contrastive": (contrastive, "", ""),
        "proxynca": (proxy_nca, "proxynca_proxies", "proxynca_grad_proxies"),
        "softmax": (softmax, "class_map", "softmax_grad_class_map"),
        "arcface_rev": (arcface, "class_map", "arcface_rev_grad_class_map"),
        "softtriplet_paper_oracle": (
            soft_triple,
            "softtriplet_centroids",
            "softtriplet_paper_oracle_grad_intra_class_centroids",
        ),
    }


@pytest.mark.parametrize("name", SUITES)
def test_every_key_is_compared_or_named(name: str) -> None:
    z, meta = fixtures.load("diva", name)
    compared = {
        key for loss, (_, _, grad) in cases(z, meta).items() for key in (f"{loss}_loss", f"{loss}_grad_emb", grad)
    }
    others = {key for key in z if not key.startswith(EXCLUDED)} - INPUTS
    assert others == compared - {""}


@pytest.mark.parametrize("name", SUITES)
def test_reference(name: str, x64: None) -> None:
    """The references assume unit embeddings and ours normalise them, so tangential gradients are compared."""
    z, meta = fixtures.load("diva", name)
    gate = {"rtol": meta["rtol"], "atol": meta["atol"]}
    x = z["emb"]
    np.testing.assert_allclose(jax.jit(unit)(x), x, **gate)
    for loss, (function, key, grad_key) in cases(z, meta).items():
        parameters = z[key] if key else np.zeros(())
        value, (grad_parameters, grad_x) = gradients(function, parameters, x)
        np.testing.assert_allclose(value, z[f"{loss}_loss"], **gate, err_msg=loss)
        theirs, ours = z[f"{loss}_grad_emb"], np.asarray(grad_x)
        if loss != "contrastive":
            theirs = theirs - x * np.sum(theirs * x, axis=1, keepdims=True)
            ours = ours - x * np.sum(ours * x, axis=1, keepdims=True)
        np.testing.assert_allclose(ours, theirs, **gate, err_msg=loss)
        if key:
            np.testing.assert_allclose(grad_parameters, z[grad_key], **gate, err_msg=loss)
