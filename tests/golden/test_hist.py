"""HIST against the authors' code (ljin0429/HIST) and the reproduction's
(jichengyuan/MLRC2022_HIST)."""

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


def close(ours: Any, theirs: np.ndarray, tolerance: dict[str, Any], note: str = "") -> None:
    np.testing.assert_allclose(np.asarray(ours), theirs, **tolerance["float64"], err_msg=note)


def config_of(meta: dict[str, Any], **more: Any) -> hist.Config:
    """The options that a file states."""
    given = {key: float(meta[key]) for key in ("tau", "alpha", "lambda_s")}
    return hist.Config(embedding_dim=meta["D"], hidden_dim=meta["hidden"], **given, **more)


def normalise(x: jax.Array) -> jax.Array:
    return layers.LayerNorm(affine=False).apply({}, x)


def near(ours: Any, theirs: np.ndarray, note: str = "") -> None:
    """Float32: within 2e-3 of the tensor's largest entry."""
    ours = np.asarray(ours)
    assert ours.dtype == np.float32
    atol = 2e-3 * max(np.abs(theirs).max(), 1e-3)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol, err_msg=note)


def network(z: dict[str, np.ndarray], depth: int, prefix: str = "") -> tuple[Any, Any]:
    """(params, stats) of the hypergraph network from torch's layout."""
    params: dict[str, Any] = {}
    running: dict[str, Any] = {}
    theta = lambda i: fixtures.torch_layer(z, f"{prefix}theta{i}", separator="_")  # noqa: E731
    for i in range(1, depth + 1):
        bn = f"{prefix}bn{i}_"
        affine = {"scale": z[f"{bn}weight"], "bias": z[f"{bn}bias"]}
        params[f"block{i}"] = {"theta": theta(i), "bn": affine}
        running[f"block{i}"] = {key: z[f"{bn}running_{key}"] for key in ("mean", "var")}
    params["output"] = theta(depth + 1)
    return params, running


def torch_layout(params: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """Parameters (or gradients) of the hypergraph network under their names in the files."""
    named = {}
    for block, value in params.items():  # arrays of NumPy, or within a compiled function
        i = len(params) if block == "output" else int(block.removeprefix("block"))
        theta = value if block == "output" else value["theta"]
        named[f"{prefix}theta{i}_weight"] = theta["kernel"].T
        named[f"{prefix}theta{i}_bias"] = theta["bias"]
        if block != "output":
            named[f"{prefix}bn{i}_weight"] = value["bn"]["scale"]
            named[f"{prefix}bn{i}_bias"] = value["bn"]["bias"]
    return named


def after_training(stats: Any) -> dict[str, jax.Array]:
    """Running statistics under their names in the files."""
    return {
        f"bn{block.removeprefix('block')}_running_{key}_after": value
        for block, of_block in stats.items()
        for key, value in of_block.items()
    }


@pytest.mark.parametrize("name", files("distribution_loss"))
def test_distribution_loss(name: str, x64: None) -> None:
    z, meta = fixtures.load("hist", name)
    single = meta.get("computed_in") == "float32"
    dtype = jnp.float32 if single else jnp.float64
    labels = jnp.asarray(z["labels"])
    params = {key: jnp.asarray(z[key], dtype) for key in ("means", "log_vars")}
    tau, alpha = float(z["tau"]), float(z["alpha"])
    check = near if single else lambda a, b, n="": close(a, b, meta["tolerance"], n)

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
    for key, value in everything(jnp.asarray(z["embeddings"], dtype), params).items():
        check(value, z[key], key)


@pytest.mark.parametrize("name", files("hgnn"))
def test_hgnn(name: str, x64: None) -> None:
    z, meta = fixtures.load("hist", name)
    depth, labels = meta["num_hidden_layers"], jnp.asarray(z["labels"])
    params, stats = network(z, depth)
    config = hist.Config(hidden_dim=len(z["bn1_weight"]) if depth else 1, hidden_layers=depth)
    one_edge = meta["n_edges"] == 1
    # With one hyperedge every row of G is equal: these gradients are zeros, stored as rounding
    # noise.
    zeros = {"X", "H", "theta1_weight", "theta1_bias", "bn1_weight"} if one_edge else set()

    def cross_entropy(x: jax.Array, h: jax.Array, params: Any, train: bool) -> tuple[jax.Array, Any]:
        g = hist.propagation(h, jnp.ones(h.shape[1]))
        logits, after = hist.classify(params, stats, x, g, config, train=train)
        loss = -jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels].mean()
        return loss, (g.times(jnp.eye(len(labels))), logits, after)

    run = jax.jit(jax.value_and_grad(cross_entropy, (0, 1, 2), has_aux=True), static_argnums=3)
    for mode in ("train", "eval"):
        given = jnp.asarray(z["X"]), jnp.asarray(z["H"]), params, mode == "train"
        (value, (g, logits, after)), grads = run(*given)
        found = {"G": g, f"logits_{mode}": logits, f"ce_{mode}": value}
        if mode == "train":
            found |= after_training(after)
        for key, value in found.items():
            close(value, z[key], meta["tolerance"], key)
        named = {"X": grads[0], "H": grads[1], **torch_layout(jax.tree.map(np.asarray, grads[2]))}
        for key, grad in named.items():
            noise = mode == "train" and key in zeros
            tolerance = {"float64": {"rtol": 0, "atol": 1e-8}} if noise else meta["tolerance"]
            close(grad, z[f"grad_{mode}_{key}"], tolerance, f"{mode} {key}")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", files("hist_total"))
def test_total(name: str, dtype: str, x64: None) -> None:
    z, meta = fixtures.load("hist", name)
    z = fixtures.cast(z, dtype)
    depth, labels = meta["num_hidden_layers"], jnp.asarray(z["labels"])
    params, stats = network(z, depth)
    whole = {"distributions": {k: z[k] for k in ("means", "log_vars")}, "hgnn": params}
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
        return out | torch_layout(grads[1]["hgnn"], "grad_") | after_training(after)

    for key, value in everything(jnp.asarray(z["features"]), whole).items():
        if dtype == "float64":
            close(value, z[key], meta["tolerance"], key)
        else:
            near(value, z[key], key)


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
    for key, value in found.items():
        close(value, z[key], meta["tolerance"], key)


@pytest.mark.parametrize("name", files("train_trace"))
def test_training_trace(name: str, x64: None) -> None:
    """A whole run through the real step: warm-up with a frozen backbone, four groups, decay,
    staircase."""
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
    steps = (warm + meta["epochs"]) * epoch
    falls = range(warm + meta["lr_decay_step"], warm + meta["epochs"], meta["lr_decay_step"])
    relu = lambda p, x: jax.nn.relu(x @ p["kernel"] + p["bias"][None])  # noqa: E731
    data = TrainingSet(meta["C"], meta["C"])
    method = hist.build(config, fixtures.of_vectors(meta["K"], relu), data)
    hgnn, stats = network(z, 1, "init_")
    layer = partial(fixtures.torch_layer, z, separator="_")
    params = {"backbone": layer("init_body"), "embedding": layer("init_embedding"), "hgnn": hgnn}
    params["distributions"] = {key: z[f"init_{key}"] for key in ("means", "log_vars")}
    when = {"start": warm * epoch, "milestones": tuple(e * epoch for e in falls), "steps": steps}
    schedule, state, update = fixtures.training(method, train, params, {"backbone": {}, "hgnn": stats}, **when)
    terms = []
    for t in range(steps):
        labels = z["labels"][t]
        batch = Batch(z["inputs"][t][None], labels, labels)
        state, logged = update(state, batch, jax.random.key(0))
        terms.append(logged)
        found = float(schedule(t)) * np.array(list(rates.values()))
        np.testing.assert_allclose(found, z["lrs"][t], rtol=1e-6)
        if t + 1 == warm * epoch:
            body = np.asarray(state.params["backbone"]["kernel"]).T
            np.testing.assert_array_equal(body, z["body_weight_after_warm"])
    for key, stored in (("loss", "losses"), ("loss_d", "losses_d"), ("loss_ce", "losses_ce")):
        close([term[key] for term in terms], z[stored], meta["tolerance"], key)
    learned = jax.tree.map(np.asarray, state.params)
    final = torch_layout(learned["hgnn"])
    for key in ("means", "log_vars"):
        final[key] = learned["distributions"][key]
    for key, group in (("body", "backbone"), ("embedding", "embedding")):
        final[f"{key}_weight"] = learned[group]["kernel"].T
        final[f"{key}_bias"] = learned[group]["bias"]
    for key in ("mean", "var"):
        final[f"bn1_running_{key}"] = state.model_state["hgnn"]["block1"][key]
    for key, value in final.items():
        close(value, z[f"final_{key}"], meta["tolerance"], key)


def test_only_what_is_zero_in_float32_is_dropped() -> None:
    """exp(-95) is a subnormal number, which some devices take for 0; exp(-105) is 0 in float32."""
    d, labels = np.array([[0, 95], [0, 105]], np.float32), np.array([1, 1])
    loss = jax.jit(partial(hist.distribution_loss, tau=1.0), static_argnames="drop_underflow")
    assert float(loss(d, labels, drop_underflow=True)) == pytest.approx(95)
    assert float(loss(d, labels, drop_underflow=False)) == pytest.approx(100)
