"""HIST against the authors' code (ljin0429/HIST) and the reproduction's (jichengyuan/MLRC2022_HIST)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.backbones import layers
from dml_jax.config import Group, Train
from dml_jax.methods.contract import Batch, TrainingSet
from dml_jax.methods.hist import method as hist
from tests.golden import fixtures

KINDS = {"distribution_loss", "hgnn", "hist_total", "embedding_head", "train_trace"}
ELSEWHERE = {"proxy_anchor"}  # tests/golden/test_losses.py


def files(kind: str) -> list[str]:
    return [name for name in fixtures.names("hist") if fixtures.load("hist", name)[1]["kind"] == kind]


def test_every_file_is_known() -> None:
    for name in fixtures.names("hist"):
        assert fixtures.load("hist", name)[1]["kind"] in KINDS | ELSEWHERE, name


def config_of(meta: dict[str, Any], **more: Any) -> hist.Config:
    """The options that a file states."""
    given = {key: float(meta[key]) for key in ("tau", "alpha", "lambda_s")}
    return hist.Config(embedding_dim=meta["D"], hidden_dim=meta["hidden"], **given, **more)


def normalise(x: jax.Array) -> jax.Array:
    return layers.LayerNorm(affine=False).apply({}, x)


def near(ours: Any, theirs: Any) -> None:
    """Float32: within 2e-3 of each tensor's largest entry."""
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves({key: theirs[key] for key in ours}), strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3 * max(np.abs(b).max(), 1e-3))


def network(z: dict[str, np.ndarray], depth: int, prefix: str = "") -> dict[str, Any]:
    """Parameters of the hypergraph network, or their gradients, from torch's layout."""
    theta = lambda i: fixtures.torch_layer(z, f"{prefix}theta{i}", separator="_")  # noqa: E731
    norm = lambda i: {"scale": z[f"{prefix}bn{i}_weight"], "bias": z[f"{prefix}bn{i}_bias"]}  # noqa: E731
    blocks = {f"block{i}": {"theta": theta(i), "bn": norm(i)} for i in range(1, depth + 1)}
    return blocks | {"output": theta(depth + 1)}


def running(z: dict[str, np.ndarray], depth: int, prefix: str = "", suffix: str = "") -> dict[str, Any]:
    """Its running statistics."""
    key = lambda i, kind: f"{prefix}bn{i}_running_{kind}{suffix}"  # noqa: E731
    return {f"block{i}": {kind: z[key(i, kind)] for kind in ("mean", "var")} for i in range(1, depth + 1)}


@pytest.mark.parametrize("name", files("distribution_loss"))
def test_distribution_loss(name: str, x64: None) -> None:
    z, meta = fixtures.load("hist", name)
    single = meta.get("computed_in") == "float32"
    dtype = jnp.float32 if single else jnp.float64
    labels = jnp.asarray(z["labels"])
    params = {key: jnp.asarray(z[key], dtype) for key in ("means", "log_vars")}
    tau, alpha = float(z["tau"]), float(z["alpha"])
    check = near if single else partial(fixtures.compare, **meta["tolerance"]["float64"])

    @jax.jit
    def everything(embeddings: jax.Array, params: Any) -> dict[str, Any]:
        d = lambda x, p: hist.distances(x, p["means"], p["log_vars"], meta["distance_type"])  # noqa: E731
        out: dict[str, Any] = {"distance": d(embeddings, params)}
        out["prob_true"] = jax.nn.softmax(-tau * out["distance"])[jnp.arange(len(labels)), labels]
        h, weights = hist.incidence(out["distance"], labels, alpha=alpha)
        out["G"] = hist.propagation(h, weights).times(jnp.eye(len(labels), dtype=h.dtype))
        first = np.array([np.flatnonzero(z["labels"] == c)[0] for c in z["classes_in_batch"]])
        out["H"] = h[:, first]
        for suffix, drop in (("", True), ("_logsoftmax", False)):
            loss = partial(hist.distribution_loss, labels=labels, tau=tau, drop_underflow=drop)
            gradient = jax.value_and_grad(lambda x, p, loss=loss: loss(d(x, p)), (0, 1))
            value, grads = gradient(embeddings, params)
            out[f"loss_d{suffix}"], out[f"grad_embeddings{suffix}"] = value, grads[0]
            out |= {f"grad_{key}{suffix}": grad for key, grad in grads[1].items()}
        memberships = lambda x, p: hist.incidence(d(x, p), labels, alpha=alpha)[0][:, first]  # noqa: E731
        weighted = lambda x, p: jnp.vdot(memberships(x, p), z["H_cotangent"])  # noqa: E731
        pulled = jax.grad(weighted, (0, 1))(embeddings, params)
        out["gH_embeddings"] = pulled[0]
        out |= {f"gH_{key}": grad for key, grad in pulled[1].items()}
        return out

    assert (z["prob_true"] == 0).sum() == meta["n_zero_prob"]
    check(everything(jnp.asarray(z["embeddings"], dtype), params), z)


@pytest.mark.parametrize("name", files("hgnn"))
def test_hgnn(name: str, x64: None) -> None:
    z, meta = fixtures.load("hist", name)
    depth, labels = meta["num_hidden_layers"], jnp.asarray(z["labels"])
    params, stats = network(z, depth), running(z, depth)
    config = hist.Config(hidden_dim=len(z["bn1_weight"]) if depth else 1, hidden_layers=depth)
    close = partial(fixtures.compare, **meta["tolerance"]["float64"])

    def cross_entropy(x: jax.Array, h: jax.Array, params: Any, train: bool) -> tuple[jax.Array, Any]:
        g = hist.propagation(h, jnp.ones(h.shape[1]))
        logits, after = hist.classify(params, stats, x, g, config, train=train)
        loss = -jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels].mean()
        return loss, (g.times(jnp.eye(len(labels))), logits, after)

    run = jax.jit(jax.value_and_grad(cross_entropy, (0, 1, 2), has_aux=True), static_argnums=3)
    for mode in ("train", "eval"):
        given = jnp.asarray(z["X"]), jnp.asarray(z["H"]), params, mode == "train"
        (value, (g, logits, after)), grads = run(*given)
        close({"G": g, f"logits_{mode}": logits, f"ce_{mode}": value}, z)
        theirs = {key: z[f"grad_{mode}_{key}"] for key in "XH"} | network(z, depth, f"grad_{mode}_")
        ours = dict(zip("XH", grads, strict=False)) | grads[2]
        if mode == "train":
            close(after, running(z, depth, suffix="_after"))
            if meta["n_edges"] == 1:  # every row of G is equal: these gradients are zeros, stored as rounding noise
                noise = {key: ours.pop(key) for key in ("X", "H", "block1")}
                fixtures.compare(noise, theirs, mode, rtol=0, atol=1e-8)
        close(ours, theirs, mode)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", files("hist_total"))
def test_total(name: str, dtype: str, x64: None) -> None:
    z, meta = fixtures.load("hist", name)
    z = fixtures.cast(z, dtype)
    depth, labels = meta["num_hidden_layers"], jnp.asarray(z["labels"])
    stats = running(z, depth)
    params = {"distributions": {k: z[k] for k in ("means", "log_vars")}, "hgnn": network(z, depth)}
    config = config_of(meta, hidden_layers=depth, distance=meta["distance_type"])

    @jax.jit
    def everything(features: jax.Array, params: Any) -> dict[str, Any]:
        embeddings = normalise(features)

        def total(embeddings: jax.Array, params: Any) -> Any:
            value, (after, terms) = hist.loss(params, stats, embeddings, labels, config)
            return (value, terms["loss_ce"]), (after, terms)

        (value, _), pull, (after, terms) = jax.vjp(total, embeddings, params, has_aux=True)
        one, zero = jnp.ones_like(value), jnp.zeros_like(value)
        grads, (_, ce) = pull((one, zero)), pull((zero, one))
        own = params["distributions"]
        d = hist.distances(embeddings, own["means"], own["log_vars"], config.distance)
        h, weights = hist.incidence(d, labels, alpha=config.alpha)
        g = hist.propagation(h, weights)
        logits, _ = hist.classify(params["hgnn"], stats, embeddings, g, config, train=True)
        first = np.unique(z["labels"], return_index=True)[1]
        out = {"embeddings": embeddings, "loss": value, **terms, "grad_embeddings": grads[0]}
        out |= {"H": h[:, first], "logits": logits}
        out["grad_features"] = jax.vjp(normalise, features)[1](grads[0])[0]
        for key in ("means", "log_vars"):
            out[f"grad_{key}"] = grads[1]["distributions"][key]
            out[f"grad_ce_{key}"] = ce["distributions"][key]
        return out | {"hgnn": grads[1]["hgnn"], "after": after}

    theirs = z | {"hgnn": network(z, depth, "grad_"), "after": running(z, depth, suffix="_after")}
    check = partial(fixtures.compare, **meta["tolerance"]["float64"]) if dtype == "float64" else near
    check(everything(jnp.asarray(z["features"]), params), theirs)


@pytest.mark.parametrize("name", files("embedding_head"))
def test_embedding_head(name: str, x64: None) -> None:
    z, meta = fixtures.load("hist", name)
    config = hist.Config(embedding_dim=meta["D"], pooling="avg+max" if meta["add_gmp"] else "avg")
    params = fixtures.torch_layer(z, "embedding", separator="_")
    features = jnp.asarray(z["feature_map"].transpose(0, 2, 3, 1))
    cotangent = jnp.asarray(z["cotangent"] if "cotangent" in z else z["R"])

    @jax.jit
    def everything(params: Any, features: jax.Array) -> Any:
        embed = lambda p, f: hist.Embedding(config).apply({"params": {"embedding": p}}, f)  # noqa: E731
        embeddings, pull = jax.vjp(embed, params, features)
        return embeddings, pull(cotangent)

    embeddings, (grads, grad_features) = everything(params, features)
    pooled = jax.jit(layers.global_pool, static_argnums=1)(features, config.pooling)
    found = {"pooled": pooled, "embeddings": embeddings, "grad_embedding_bias": grads["bias"]}
    found["grad_feature_map"] = np.asarray(grad_features).transpose(0, 3, 1, 2)
    found["grad_embedding_weight"] = np.asarray(grads["kernel"]).T
    fixtures.compare(found, z, **meta["tolerance"]["float64"])


@pytest.mark.parametrize("name", files("train_trace"))
def test_training_trace(name: str, x64: None) -> None:
    """A whole run through the real step: warm-up with a frozen backbone, four groups, decay, staircase."""
    z, meta = fixtures.load("hist", name)
    config = config_of(meta, pooling="avg")
    epoch, warm, decay = meta["iters_per_epoch"], meta["warm_epochs"], meta["weight_decay"]
    rates = {
        "backbone": meta["lr"],
        "embedding": meta["lr"],
        "distributions": meta["lr_ds"],
        "hgnn": meta["lr"] * meta["lr_hgnn_factor"],
    }
    groups = {g: Group(r, decay) for g, r in rates.items()}
    groups["backbone"] = Group(meta["lr"], decay, "freeze")
    chosen = {"optimizer": meta["optimizer"], "schedule": "step", "gamma": meta["lr_decay_gamma"]}
    train = Train(groups=groups, epochs=meta["epochs"], warmup_epochs=warm, **chosen)
    falls = range(warm + meta["lr_decay_step"], warm + meta["epochs"], meta["lr_decay_step"])
    relu = lambda p, x: jax.nn.relu(x @ p["kernel"] + p["bias"][None])  # noqa: E731
    method = hist.build(config, fixtures.of_vectors(meta["K"], relu), TrainingSet(meta["C"], meta["C"]))

    def parameters(moment: str) -> dict[str, Any]:
        layers = ((group, f"{moment}_{key}") for group, key in (("backbone", "body"), ("embedding", "embedding")))
        found = {group: fixtures.torch_layer(z, key, separator="_") for group, key in layers}
        found["distributions"] = {key: z[f"{moment}_{key}"] for key in ("means", "log_vars")}
        return found | {"hgnn": network(z, 1, f"{moment}_")}

    start = parameters("init"), {"backbone": {}, "hgnn": running(z, 1, "init_")}
    batches = [Batch(x[None], y, y) for x, y in zip(z["inputs"], z["labels"], strict=True)]
    run = fixtures.trained(
        method,
        train,
        start,
        batches,
        ([*rates.values()], z["lrs"]),
        warmup=warm * epoch,
        milestones=[e * epoch for e in falls],
    )
    logged = []
    for t, (state, terms) in enumerate(run, start=1):
        logged.append(terms)
        if t == warm * epoch:
            np.testing.assert_array_equal(state.params["backbone"]["kernel"].T, z["body_weight_after_warm"])
    losses = {f"losses{part}": [term[f"loss{part}"] for term in logged] for part in ("", "_d", "_ce")}
    close = partial(fixtures.compare, **meta["tolerance"]["float64"])
    for key, values in losses.items():
        close(np.array(values), z[key], key)
    close(state.params, parameters("final"))
    close(state.model_state["hgnn"], running(z, 1, "final_"))


def test_only_what_is_zero_in_float32_is_dropped() -> None:
    """exp(-95) is a subnormal number, which some devices take for 0; exp(-105) is 0 in float32."""
    d, labels = np.array([[0, 95], [0, 105]], np.float32), np.array([1, 1])
    loss = jax.jit(partial(hist.distribution_loss, tau=1.0), static_argnames="drop_underflow")
    assert float(loss(d, labels, drop_underflow=True)) == pytest.approx(95)
    assert float(loss(d, labels, drop_underflow=False)) == pytest.approx(100)
