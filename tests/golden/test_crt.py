"""CRT and the multi-similarity loss against float64 references written from the equations.

The multi-similarity files also contain the results of pytorch-metric-learning 2.9 ("pml"), which keeps duplicates.
"""

import functools
import re
from typing import Any

import jax
import numpy as np
import pytest

from dml_jax.backbones.contract import Backbone
from dml_jax.config import Group, Train
from dml_jax.evaluation import metrics
from dml_jax.losses import pairwise
from dml_jax.losses import similarity_losses as ms
from dml_jax.methods.contract import Batch, TrainingSet
from dml_jax.methods.crt import method as crt
from dml_jax.numerics import unit
from tests.golden import fixtures

HEADS = fixtures.names("crt", "crt_*")
LOSSES = fixtures.names("crt", "ms_*")
METRICS = fixtures.names("crt", "generalization_metrics*")
TRACES = fixtures.names("crt", "trace_crt_*")
DTYPES = ("float64", "float32")


def test_every_file_is_known() -> None:
    assert set(fixtures.names("crt")) == {*HEADS, *LOSSES, *METRICS, *TRACES}


def ms_options(hyper: dict[str, float]) -> dict[str, float]:
    names = {"alpha": "alpha", "beta": "beta", "base": "lam", "epsilon": "eps"}
    return {ours: hyper[theirs] for ours, theirs in names.items()}


def params_of(z: dict[str, np.ndarray], dtype: str, prefix: str = "") -> Any:
    """Parameters of the branches from arrays in torch's layout, [out, in]."""
    cast = lambda key: z[prefix + key].astype(dtype)  # noqa: E731
    params: dict[str, Any] = {}
    for b in (1, 2):
        branch: dict[str, Any] = {}
        for i, layer in ((1, "hidden"), (2, "output")):
            if f"{prefix}p{b}.W{i}" in z:
                kernel = cast(f"p{b}.W{i}").swapaxes(1, 2)
                branch[layer] = {"kernel": kernel, "bias": cast(f"p{b}.b{i}")}
        if f"{prefix}p{b}.C" in z:
            branch["prototypes"] = cast(f"p{b}.C")
        params[f"branch{b}"] = branch
    return params


def config_of(
    z: dict[str, np.ndarray], meta: dict[str, Any], consistency: Any = "mean", prefix: str = ""
) -> crt.Config:
    shared = f"{prefix}p2.C" not in z
    first = z[f"{prefix}p1.C"]
    return crt.Config(
        embedding_dims=(z[f"{prefix}p1.b2"].shape[1], z[f"{prefix}p2.b2"].shape[1]),
        prototypes=(len(first), len(first) if shared else len(z[f"{prefix}p2.C"])),
        hidden_dim=z[f"{prefix}p1.b1"].shape[1],
        sharing="shared" if shared else "separate",
        gamma="single" if len(z[f"{prefix}p1.b1"]) == 1 else "per_prototype",
        lambda1=(meta["lambda1_branch1"], meta["lambda1_branch2"]),
        lambda2=meta["lambda2"],
        w_div=meta.get("w_div", 1.0),
        consistency=consistency,
        multi_similarity=crt.MultiSimilarity(**ms_options(meta["ms"])),
    )


def close(ours: Any, theirs: np.ndarray, dtype: str, meta: dict[str, Any], note: str) -> None:
    """Float64: relative to each entry; float32: relative to the largest entry of the array."""
    assert np.asarray(ours).dtype == dtype, note
    gate = meta["tolerance"][dtype]
    scale = max(float(np.abs(theirs).max()), 1.0) if dtype == "float32" else 1.0
    rtol = gate if dtype == "float64" else 0
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=gate * scale, err_msg=note)


def precision(dtype: str) -> Any:
    return jax.enable_x64(dtype == "float64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HEADS)
def test_head(name: str, dtype: str) -> None:
    z, meta = fixtures.load("crt", name)
    with precision(dtype):
        params, x, labels = params_of(z, dtype), z["x"].astype(dtype), z["labels"]
        config = config_of(z, meta)
        check = functools.partial(close, dtype=dtype, meta=meta)

        def losses(p: Any, x: jax.Array) -> Any:
            embeddings, found = crt.Branches(config).apply({"params": p}, x), {}
            for b, f in enumerate(embeddings, start=1):
                trunk = p[f"branch{b}"] if "prototypes" in p[f"branch{b}"] else p["branch1"]
                found[f"r{b}"] = crt.coded_residuals(trunk["prototypes"], x)
                found |= {f"f{b}": f, f"e{b}": unit(f), f"S{b}": pairwise.cosine(f, f)}
                found[f"L_DIV{b}"] = crt.diversity(trunk["prototypes"])

            prototypes = crt.own_prototypes(p)
            mean, terms = crt.loss(prototypes, embeddings, labels, config)
            total, sums = crt.loss(prototypes, embeddings, labels, config_of(z, meta, "sum"))
            parts = {
                "total_mean": mean,
                "total_sum": total,
                "con_sum": sums["consistency"],
                "ms1": terms["multi_similarity1"],
                "div": sum(term for key, term in terms.items() if key.startswith("diversity")),
            }
            found |= {"L_total_mean": mean, "L_total_sum": total}
            found |= {"L_MS1": terms["multi_similarity1"], "L_MS2": terms["multi_similarity2"]}
            found |= {"L_CON_sum": sums["consistency"], "L_CON_mean": terms["consistency"]}
            return parts, found

        grads, found = jax.jit(jax.jacrev(losses, argnums=(0, 1), has_aux=True))(params, x)
        for key, ours in found.items():
            check(ours, z[key], note=key)
        for part, ours in grads.items():
            inputs = [key for key in z if key == "x" or re.match(r"p\d\.", key)]
            # Not stored if independent.
            stored = {key: z.get(f"grad.{part}.{key}", np.zeros(z[key].shape)) for key in inputs}
            jax.tree.map(functools.partial(check, note=part), ours, (params_of(stored, dtype), stored["x"]))
        assert config.sharing == ("shared" if "once" in meta["L_DIV"] else "separate")


VARIANTS: dict[str, dict[str, Any]] = {
    "mined": {},
    "mined_keepdup": {"copies": "keep"},
    "mined_active_mean": {"divisor": "active"},
    "unmined": {"copies": "keep", "mining": False},
}


@jax.jit
@functools.partial(jax.jacrev, has_aux=True)
def multi_similarity(e: jax.Array, labels: jax.Array, options: dict[str, jax.Array]) -> Any:
    """Gradients of the loss by variant, cosines, details by variant."""
    s, details = pairwise.cosine(e, e), {}
    for variant, chosen in VARIANTS.items():
        complete = vars(crt.MultiSimilarity(**chosen)) | options
        terms, p, n = ms.multi_similarity_terms(s, *pairwise.masks(labels), **complete)
        details[variant] = pairwise.reduce_terms(terms, None), terms.values, p, n
    return {variant: loss for variant, (loss, *_) in details.items()}, (s, details)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LOSSES)
def test_multi_similarity(name: str, dtype: str) -> None:
    z, meta = fixtures.load("crt", name)
    with precision(dtype):
        check = functools.partial(close, dtype=dtype, meta=meta)
        given = z["emb"].astype(dtype), z["labels"], ms_options(meta)
        grads, (s, details) = multi_similarity(*given)
        check(s, z["S"], note="S")
        for variant, (loss, each, kept_positive, kept_negative) in details.items():
            check(loss, z[f"{variant}.loss"], note=f"{variant}.loss")
            check(each, z[f"{variant}.per_anchor"], note=f"{variant}.per_anchor")
            check(grads[variant], z[f"{variant}.grad"], note=f"{variant}.grad")
            np.testing.assert_array_equal(kept_positive, z[f"{variant}.pos_mask"], err_msg=variant)
            np.testing.assert_array_equal(kept_negative, z[f"{variant}.neg_mask"], err_msg=variant)
        check(details["mined_keepdup"][0], z["pml.mined"], note="pml.mined")
        summed = z["pml.mined_sum_over_batch"]
        check(details["mined_keepdup"][0], summed, note="pml.mined_sum_over_batch")
        check(grads["mined_keepdup"], z["pml.mined_grad"], note="pml.mined_grad")
        check(details["unmined"][0], z["pml.unmined"], note="pml.unmined")


@pytest.mark.parametrize("name", METRICS)
def test_generalization_metrics(name: str) -> None:
    """The definitions of Roth et al. (ICML 2020), cited by CRT: density from class means, decay of the whole spectrum.

    Not compared: `code.rho_numpy_truncated`, which loses the smallest singular value; the pairwise and Euclidean
    variants of the density; the other directions of the divergence.
    """
    z, meta = fixtures.load("crt", name)
    gate = {"rtol": meta["tolerance"]["float64"], "atol": meta["tolerance"]["float64"]}
    density = metrics.density(z["emb"], z["labels"])
    decay = metrics.spectral_decay(z["emb"])
    for key in ("esd.cosine.roth", "code.dists_ratio"):
        np.testing.assert_allclose(density, z[key], **gate, err_msg=key)
    for key in ("sd.uniform_vs_spectrum", "code.rho_torch"):
        np.testing.assert_allclose(decay, z[key], **gate, err_msg=key)


def toy(z: dict[str, np.ndarray]) -> Backbone:
    """One linear layer applied to every position of "images" [N, P, 1, inputs]."""

    def layer(params: Any, x: jax.Array) -> jax.Array:
        return x @ params["weight"].T + params["bias"].reshape(1, 1, 1, -1)

    return fixtures.of_vectors(len(z["init/body.bias"]), layer, maps=True)


def trace_params(z: dict[str, np.ndarray], moment: str) -> Any:
    body = {key: z[f"{moment}/body.{key}"] for key in ("weight", "bias")}
    return {"backbone": body} | params_of(z, "float64", f"{moment}/")


@pytest.mark.parametrize("name", TRACES)
def test_trace(name: str, x64: None) -> None:
    """A short training run with the library's step and optimizer."""
    z, meta = fixtures.load("crt", name)
    config = config_of(z, meta, prefix="init/")
    assert config.sharing == meta["sharing"].removesuffix("_trunk")
    method = crt.build(config, toy(z), TrainingSet(2, 2))
    groups = dict.fromkeys(method.groups, Group(meta["lr"], meta["weight_decay"]))
    train = Train(groups=groups, steps=meta["steps"], optimizer=meta["optimizer"])
    start = trace_params(z, "init"), {"backbone": {}}
    rows = [labels.astype(np.int32) for labels in z["labels"]]
    batches = [Batch(x[None, :, :, None, :], y, np.arange(len(y))) for x, y in zip(z["inputs"], rows, strict=True)]
    run = fixtures.trained(method, train, start, batches, (meta["lr"], z["lrs"]))

    equal = functools.partial(np.testing.assert_allclose, **meta["tolerance"]["float64"])
    logged = {"multi_similarity1": "ms1", "multi_similarity2": "ms2"}
    logged |= {"diversity1": "div1", "consistency": "con"}
    if config.sharing == "separate":
        logged["diversity2"] = "div2"
    counted = ("positives1", "negatives1", "positives2", "negatives2")
    for i, (state, terms) in enumerate(run):
        note = f"step {i + 1}"
        equal(terms["loss"], z["losses"][i], err_msg=note)
        for ours, theirs in logged.items():
            equal(terms[ours], z[f"losses_{theirs}"][i], err_msg=f"{note} {ours}")
        counts = [terms[key] for key in counted]
        np.testing.assert_array_equal(counts, z["mined_counts"][i], err_msg=note)
        if i == 0:
            jax.tree.map(equal, state.params, trace_params(z, "step1"))
    jax.tree.map(equal, state.params, trace_params(z, "final"))

    @jax.jit
    def evaluated(params: Any, model_state: Any, images: jax.Array) -> Any:
        encoded, _ = method.encode(params, model_state, images, train=False)
        return *encoded, method.embed(params, model_state, images[0])

    found = evaluated(state.params, state.model_state, batches[-1].images)
    for ours, name in zip(found, ("f1", "f2", "embedding"), strict=True):
        equal(ours, z[f"eval_{name}"], err_msg=name)
