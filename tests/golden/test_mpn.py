"""MPN against the authors' code (dvl-tum/intra_batch): network, losses, RAdam, reciprocal neighbours, training runs."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dml_jax.backbones import functional
from dml_jax.backbones.layers import Dense
from dml_jax.config import Group, Train
from dml_jax.methods.contract import Batch, TrainingSet
from dml_jax.methods.mpn import method as mpn
from dml_jax.methods.mpn import refinement
from dml_jax.numerics import unit
from dml_jax.train import optimizers, step
from dml_jax.train.step import TrainState
from tests.golden import fixtures
from tests.golden.fixtures import torch_layer as linear

PATTERNS = {
    "stack": r"mpn_l\d+h\d+.*",
    "loss": r"loss_.*",
    "refine": r"mpn_refine.*",
    "radam": r"radam_.*",
    "rknn": r"rknn_k\d.*",
    "inshop": r"rknn_inshop_.*",
    "trace": r"trace_mpn_.*",
}
EQUATIONS: Any = {"code": "authors", "standard": "transformer", "paper": "paper"}
LOSSES = {("lsce", "lsgnn"): "both", ("lsce",): "auxiliary", ("lsgnn",): "mpn"}
OF_LAYERS = {
    "query": ("att.q_linear",), "key_value": ("att.k_linear", "att.v_linear"),
    "output": ("att.out",), "norm1": ("norm1",), "norm2": ("norm2",), "ff1": ("linear1",),
    "ff2": ("linear2",),
}  # fmt: skip


def files(kind: str) -> list[str]:
    return [name for name in fixtures.names("mpn") if re.fullmatch(PATTERNS[kind], name)]


def test_every_file_is_known() -> None:
    for name in fixtures.names("mpn"):
        assert any(re.fullmatch(pattern, name) for pattern in PATTERNS.values()), name


def load(name: str, dtype: str) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, float]]:
    """Arrays in `dtype`, meta, and the tolerance of the file for that `dtype`."""
    z, meta = fixtures.load("mpn", name)
    z = fixtures.cast(z, dtype)
    strict = {"atol": meta.get("atol", 0), "rtol": meta.get("rtol", 0)}
    return z, meta, strict if dtype == "float64" else meta.get("tol_float32", {})


def configure(meta: dict[str, Any], **more: Any) -> mpn.Config:
    names = {"layers": "num_layers", "heads": "num_heads", "embedding_dim": "embed_dim"}
    stated = {ours: meta[theirs] for ours, theirs in names.items()}
    return mpn.Config(**stated, dropout=0.0, **more)


def options_of(meta: dict[str, Any]) -> dict[str, Any]:
    options = {"temperature": meta["temperature"], "smoothing": meta["label_smoothing"]}
    return options | {"concatenate": bool(meta["cat"])}


def dense(params: Any, x: jax.Array) -> jax.Array:
    return Dense(params["kernel"].shape[1]).apply({"params": params}, x)


def layers(z: dict[str, np.ndarray], prefix: str, count: int) -> dict[str, Any]:
    """Parameters of the message passing layers, or their gradients."""
    params: dict[str, Any] = {}
    for i in range(count):
        params[f"layer{i + 1}"] = layer = {}
        for ours, theirs in OF_LAYERS.items():
            names = [f"{prefix}layers.{i}.{name}" for name in theirs]
            if ours.startswith("norm"):
                layer[ours] = {"scale": z[f"{names[0]}.weight"], "bias": z[f"{names[0]}.bias"]}
            elif f"{names[0]}.weight" in z:  # not all equations have an output
                layer[ours] = linear(z, *names)
    return params


def all_heads(z: dict[str, np.ndarray], prefix: str, count: int) -> dict[str, Any]:
    """Parameters of the message passing network and of the auxiliary classifier."""
    network = layers(z, f"{prefix}gnn_model.node_model.", count)
    network["projection"] = linear(z, f"{prefix}dim_red")
    network["neck"] = {"scale": z[f"{prefix}bottleneck.0.weight"]}
    network["classifier"] = linear(z, f"{prefix}fc.0")
    return {"auxiliary": linear(z, f"{prefix}aux_fc"), "mpn": network}


def train_of(meta: dict[str, Any], groups: dict[str, Group]) -> Train:
    fall = {"schedule": "step", "gamma": meta["lr_drop_factor"]}
    return Train(groups, steps=meta["steps"], optimizer="radam", **fall)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", files("stack"))
def test_stack(name: str, dtype: str, x64: None) -> None:
    z, meta, tolerance = load(name, dtype)
    config = configure(meta, equations=EQUATIONS[meta["variant"]])
    params = layers(z, "param/", meta["num_layers"])

    network = mpn.MessagePassingNetwork(config, classes=1)

    def scalar(x: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        outputs = network.apply({"params": params}, x, method="propagate")
        return jnp.sum(z["cotangent"] * outputs[-1][0]), outputs

    @jax.jit
    def run(x: jax.Array, params: Any) -> Any:
        (grad_x, grads), outputs = jax.grad(scalar, (0, 1), has_aux=True)(x, params)
        nodes, attention = (jnp.stack(part) for part in zip(*outputs, strict=True))
        return {"out": nodes[-1], "layer_out": nodes, "attn": attention, "grad_x": grad_x}, grads

    found, grads = run(z["x"], params)
    assert found["grad_x"].dtype == dtype
    fixtures.compare(found, z, **tolerance)
    fixtures.compare(grads, layers(z, "grad/", meta["num_layers"]), **tolerance)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", files("loss"))
def test_loss(name: str, dtype: str, x64: None) -> None:
    z, meta, tolerance = load(name, dtype)
    options = options_of(meta)
    selected = LOSSES[*sorted(meta["losses"].split("_")),]
    params = all_heads(z, "param/", meta["num_layers"])
    stats = {"neck": {key: z[f"bn_running_{key}_before"] for key in ("mean", "var")}}
    labels = z["labels"]

    classes = params["mpn"]["classifier"]["kernel"].shape[1]
    network, both = (
        mpn.MessagePassingNetwork(configure(meta, losses=losses, **options), classes) for losses in (selected, "both")
    )

    @jax.jit
    def compute(params: Any, fc7: jax.Array) -> dict[str, Any]:
        loss = lambda p, f: mpn.loss(p, stats, f, labels, network)  # noqa: E731
        gradient = jax.value_and_grad(loss, (0, 1), has_aux=True)
        (value, _), (grads, grad_fc7) = gradient(params, fc7)
        _, (after, terms) = mpn.loss(params, stats, fc7, labels, both)
        run = partial(functional.apply, network, params["mpn"])
        (refined, logits), _ = run(stats, fc7, True, mutable=True)
        (eval_refined, eval_logits), _ = run(after, fc7, False)
        return {
            "aux_logits": dense(params["auxiliary"], fc7),
            "mpn_logits": logits,
            "backbone_embedding": unit(fc7),
            "mpn_embedding": unit(refined),
            "loss": value,
            "loss_aux": terms["loss_auxiliary"],
            "loss_mpn": terms["loss_mpn"],
            "grad_fc7": grad_fc7,
            "bn_running_mean_after": after["neck"]["mean"],
            "bn_running_var_after": after["neck"]["var"],
            "eval_mpn_logits": eval_logits,
            "eval_mpn_embedding": unit(eval_refined),
            "grad": grads,
        }

    ours = compute(params, z["fc7"])
    assert {leaf.dtype.name for leaf in jax.tree.leaves(ours)} == {dtype}
    fixtures.compare(ours, z | {"grad": all_heads(z, "grad/", meta["num_layers"])}, **tolerance)
    if dtype == "float64":
        fixtures.compare({key: ours[key] for key in ("loss", "loss_aux", "loss_mpn")}, z, rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", files("refine"))
def test_refine(name: str, dtype: str, x64: None) -> None:
    z, meta, tolerance = load(name, dtype)
    config = configure(meta, concatenate=bool(meta["cat"]), k=meta["k"], k_r=meta["k_r"])
    network = mpn.MessagePassingNetwork(config, classes=2)
    params = layers(z, "param/gnn_model.node_model.", meta["num_layers"])
    params["projection"] = linear(z, "param/dim_red")
    embeddings = jnp.asarray(z["embeddings"])
    given = params, embeddings, jnp.asarray(z["batches"]), network
    refined = jax.jit(mpn.refine, static_argnums=3)(*given)
    np.testing.assert_allclose(np.asarray(refined)[:, 0], z["refined"], **tolerance)
    if dtype == "float64":  # in float32 the order of near neighbours may differ
        method = mpn.build(config, fixtures.of_vectors(meta["embed_dim"]), TrainingSet(2, 2))
        refine, stored = dict(method.hooks.refine)["reciprocal"], {"test": embeddings}
        found, _ = refine({"mpn": params}, {}, stored, None)
        np.testing.assert_allclose(found["test"], z["refined"], **tolerance)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", files("radam"))
def test_radam(name: str, dtype: str, x64: None) -> None:
    z, meta, tolerance = load(name, dtype)
    drop = meta["lr_drop_before_step"]
    train = train_of(meta, {})
    milestones = (drop - 1,) if drop else ()
    schedule = optimizers.rate_factor(train, start=0, stop=meta["steps"], milestones=milestones)
    group = Group(meta["lr"], meta["weight_decay"])
    for i in range(2):
        has_grad = z[f"p{i}_has_grad"].astype(bool)
        # The schedule counts the steps of the run, not the updates of this parameter.
        own, masked = jnp.asarray(np.flatnonzero(has_grad)), jnp.asarray(has_grad)
        rate = lambda count, own=own: schedule(own[count])  # noqa: E731
        rule = optimizers._group_optimizer(train, group, rate, 0)
        rule = optax.transforms.conditionally_mask(rule, lambda t, masked=masked: masked[t])

        def updated(rule: Any, gradient: Any, state: Any, params: Any) -> Any:
            updates, state = rule.update(gradient, state, params)
            return optax.apply_updates(params, updates), state

        update = jax.jit(partial(updated, rule))
        params = z[f"p{i}_init"]
        state, trajectory = jax.jit(rule.init)(params), []
        for gradient, present in zip(z[f"p{i}_grads"], has_grad, strict=True):
            params, state = update(gradient * present, state, params)
            trajectory.append(params)
        assert params.dtype == dtype
        moments = (optax.tree.get(state, key) for key in ("mean", "square"))
        names = ("trajectory", "exp_avg_final", "exp_avg_sq_final")
        for key, value in zip(names, (trajectory, *moments), strict=True):
            np.testing.assert_allclose(value, z[f"p{i}_{key}"], **tolerance, err_msg=key)


@pytest.mark.parametrize("rule", ["authors", "paper"])
@pytest.mark.parametrize("name", files("rknn"))
def test_reciprocal_batches(name: str, rule: refinement.Rule, x64: None) -> None:
    z, meta, _ = load(name, "float64")
    options: dict[str, Any] = {"k": meta["k"], "size": meta["k_r"], "rule": rule}
    sets = refinement.reciprocal_sets(z["embeddings"], **options)
    prefix = "" if rule == "authors" else "paper_"
    for kind in ("reciprocal", "reciprocal_half", "expanded"):
        np.testing.assert_array_equal(getattr(sets, kind).toarray() > 0, z[f"{prefix}{kind}"])
    np.testing.assert_array_equal(sets.batches, z[f"{prefix}batches"])


@pytest.mark.parametrize("name", files("inshop"))
def test_reciprocal_batches_with_a_gallery(name: str, x64: None) -> None:
    z, meta, _ = load(name, "float64")
    given = z["query"], z["gallery"]
    sets = refinement.reciprocal_sets(*given, k=meta["k"], size=meta["k_r"])
    for kind, prefix in (("reciprocal", ""), ("reciprocal_half", "gallery_"), ("expanded", "")):
        np.testing.assert_array_equal(getattr(sets, kind).toarray() > 0, z[f"{prefix}{kind}"])
    np.testing.assert_array_equal(sets.batches, z["batches"])


@pytest.mark.parametrize("name", files("trace"))
def test_training_trace(name: str, x64: None) -> None:
    """A run with the actual training step: both losses, statistics of the neck, RAdam beyond step 5, rate decay."""
    z, meta, _ = load(name, "float64")
    config, data = configure(meta, **options_of(meta)), (meta["num_classes"], meta["num_nodes"])
    method = mpn.build(config, fixtures.of_vectors(meta["in_dim"]), TrainingSet(*data))
    groups = dict.fromkeys(method.groups, Group(meta["lr"], meta["weight_decay"]))
    drop = meta["lr_drop_before_step"]

    def parameters(moment: str) -> dict[str, Any]:
        heads = all_heads(z, f"{moment}/", meta["num_layers"])
        return heads | {"backbone": {}, "embedding": linear(z, f"{moment}/body")}

    stats = {key: z[f"bn_running_{key}_init"] for key in ("mean", "var")}
    start = parameters("init"), {"backbone": {}, "neck": stats}
    nodes, key = np.arange(meta["num_nodes"]), jax.random.key(0)
    batches = [Batch(images[None], labels, nodes) for images, labels in zip(z["inputs"], z["labels"], strict=True)]
    close = partial(fixtures.compare, **meta["tolerance"]["float64"])
    objective = lambda p: step.loss(method, p, start[1], batches[0], np.int32(0), key)[0]  # noqa: E731
    close(jax.jit(jax.grad(objective))(start[0])["embedding"], linear(z, "grad1/body"))
    logged, milestones = [], (drop - 1,) if drop else ()
    run = fixtures.trained(
        method, train_of(meta, groups), start, batches, (meta["lr"], z["lrs"]), milestones=milestones
    )
    for t, (state, terms) in enumerate(run, start=1):
        logged.append(terms)
        for moment in (f"step{t}", "final" if t == meta["steps"] else "no moment"):
            if any(name.startswith(f"{moment}/") for name in z):
                close(state.params, parameters(moment), moment)
    for ours, suffix in (("loss", ""), ("loss_auxiliary", "_aux"), ("loss_mpn", "_mpn")):
        close(np.array([term[ours] for term in logged]), z[f"losses{suffix}"], ours)
    close(state.model_state["neck"], {key: z[f"bn_running_{key}_final"] for key in ("mean", "var")})

    @jax.jit
    def evaluated(state: TrainState, images: jax.Array) -> dict[str, jax.Array]:
        params, fc7 = state.params, dense(state.params["embedding"], images)
        network = mpn.MessagePassingNetwork(config, meta["num_classes"])
        neck = {"neck": state.model_state["neck"]}
        (refined, logits), _ = functional.apply(network, params["mpn"], neck, fc7, False)
        return {
            "eval_backbone_embedding": method.embed(params, state.model_state, images),
            "eval_mpn_embedding": unit(refined),
            "eval_mpn_logits": logits,
            "eval_aux_logits": dense(params["auxiliary"], fc7),
        }

    close(evaluated(state, batches[-1].images[0]), z)
