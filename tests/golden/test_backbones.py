"""Backbones compared with their torch definitions by torchvision, Cadene, timm, SegFormer and Hugging Face."""

import json
import math
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from types import ModuleType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from dml_jax.backbones import batch_norm, bn_inception, deit, googlenet, layers, mit, resnet, vit
from dml_jax.backbones.contract import PyTree
from dml_jax.backbones.weights import converted
from dml_jax.backbones.weights.convert import convert, to_jax_axes, torch_name, torch_shape
from tests.backbones.state_dicts import to_torch
from tests.golden import fixtures
from tests.golden.fixtures import draw, image

NETS: dict[str, tuple[ModuleType, Any, type[nn.Module]]] = {
    "resnet50": (resnet, resnet.Config(), resnet.ResNet),
    "bninception": (bn_inception, bn_inception.Config(), bn_inception.BNInception),
    "googlenet": (googlenet, googlenet.Config(transform_input=False), googlenet.GoogLeNet),
    "deit_small": (deit, deit.Config(), vit.VisionTransformer),
    "deit_small_distilled": (deit, deit.Config(distilled=True), vit.VisionTransformer),
    "mit_b1": (mit, mit.Config(), mit.MixTransformer),
    "mit_b2": (mit, mit.PUBLISHED["mit_b2"], mit.MixTransformer),
}
FORWARD = {f"backbone_{net}" for net in NETS}
HUGGING_FACE = {"backbone_mit_b1_hf", "backbone_mit_b2_hf"}
OTHERS = {"resnet50_train", "ops", "bn_inception_forward", "vit"}


def test_every_file_is_known() -> None:
    assert set(fixtures.names("backbones")) <= FORWARD | HUGGING_FACE | OTHERS


def described_image(meta: dict[str, Any]) -> np.ndarray:
    """The images [B, H, W, 3] that a file describes in words."""
    shape = tuple(int(n) for n in re.findall(r"\d+", meta["input"].partition("[")[2]))
    return image(meta["seed"], meta["input"].split()[2].rstrip(","), shape).transpose(0, 2, 3, 1)


Path = tuple[str, ...]


@cache
def shapes(net: str) -> tuple[dict[Path, tuple[int, ...]], ...]:
    """Shapes of parameters and of statistics by path, for images of 224 pixels."""
    module, config, _ = NETS[net]
    trees = jax.eval_shape(lambda: module.build(config).init(jax.random.key(0), (224, 224)))
    return tuple({path: leaf.shape for path, leaf in flatten_dict(tree).items()} for tree in trees)


def rebuild(net: str, seed: int, image_shape: tuple[int, int], sums: dict[str, float]) -> list[PyTree]:
    """[params, stats] in float64; `sums` holds the sums of some tensors by torch name, to check them."""
    module, config, _ = NETS[net]
    checked = set()

    def fill(path: Path, shape: tuple[int, ...]) -> jax.Array:
        if path == ("pos_embed",):
            shape = (1, shape[1] - 14 * 14 + math.prod(vit.grid(config, image_shape)), shape[2])
        name = torch_name(config.name, path)
        tensor = draw(seed, name, torch_shape(path, shape))
        if name in sums:
            np.testing.assert_allclose(tensor.sum(), sums[name], rtol=1e-9)
            checked.add(name)
        return jax.device_put(to_jax_axes(path, tensor))

    trees = [unflatten_dict({path: fill(path, shape) for path, shape in tree.items()}) for tree in shapes(net)]
    heads = tuple(f"{name}." for name in module.CLASSIFIERS)
    assert checked == {name for name in sums if not name.startswith(heads)}
    return trees


def classifier_shapes(net: str) -> dict[str, tuple[int, ...]]:
    """The tensors of a network's classifiers."""
    module, config, _ = NETS[net]
    found, channels = {}, module.build(config).channels
    for name in module.CLASSIFIERS[: 2 if getattr(config, "distilled", False) else 1]:
        found |= {f"{name}.weight": (1000, channels), f"{name}.bias": (1000,)}
    return found


def logits_of(net: str, seed: int, vectors: Iterable[np.ndarray]) -> np.ndarray:
    """Logits of a network's classifiers, drawn by the rule of the files, each of its own vectors
    [B, C]; their mean if there are two."""
    drawn = [draw(seed, key, shape) for key, shape in classifier_shapes(net).items()]
    layers = zip(drawn[::2], drawn[1::2], vectors, strict=False)
    return np.mean([x @ weight.T + bias for weight, bias, x in layers], axis=0)


def nchw(x: Any) -> Any:
    return x.transpose(0, 3, 1, 2)


def stages(net: str, captured: Any) -> dict[str, jax.Array]:
    """Outputs of modules under their torch names, in torch's layout (tokens [B, N, C] in transformers)."""
    module, config, _ = NETS[net]
    named = {name: out for name, out in captured.items() if name not in ("__call__", "encode")}
    if module is resnet:
        for stage, depth in enumerate(config.depths, start=1):
            named[f"layer{stage}"] = captured[f"layer{stage}_{depth - 1}"]
    if module is bn_inception:
        for key in bn_inception.BLOCKS:
            named[f"inception_{key}_pool"] = named.pop(f"inception_{key}")["pool"]
    outputs = {name: out["__call__"][0] for name, out in named.items() if "__call__" in out}
    if module in (resnet, bn_inception, googlenet):
        return {name: nchw(out) for name, out in outputs.items()}
    tokens = {}
    for name, x in outputs.items():
        torch = torch_name(config.name, (name, "x")).removesuffix(".x")
        tokens[torch.removesuffix(".proj")] = x.reshape(x.shape[0], -1, x.shape[-1])
    return tokens


@cache
def network_of(net: str, transform_input: bool = False) -> Callable[[PyTree, PyTree, np.ndarray], Any]:
    """(params, stats, images [B, H, W, 3]) -> (feature map, tokens of DeiT, outputs of all stages), compiled."""
    _, config, network = NETS[net]
    network = network(replace(config, transform_input=True) if transform_input else config)
    wanted = lambda _, method: method in ("__call__", "encode")  # noqa: E731
    kept = {"mutable": "intermediates", "capture_intermediates": wanted}

    @jax.jit
    def run(params: PyTree, stats: PyTree, x: jax.Array) -> Any:
        features, more = network.apply({"params": params, "batch_stats": stats}, x, False, **kept)
        captured = more["intermediates"]
        tokens = captured["encode"][0][0] if "encode" in captured else None
        return features, tokens, stages(net, captured)

    return lambda *inputs: jax.device_get(run(*inputs))


def close(ours: Any, theirs: Any, atol: float, note: str = "") -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol, err_msg=note)


def check_norms(ours: np.ndarray, theirs: np.ndarray, rtol: float, note: str) -> None:
    """Of the rows of `ours` [B, n]."""
    norms = np.linalg.norm(ours, axis=1)
    np.testing.assert_allclose(norms, theirs, rtol=rtol, err_msg=note)


def check_stages(z: Any, meta: dict[str, Any], tag: str, outputs: Any, rtol: float) -> None:
    for row, name in enumerate(meta["stage_names"]):
        ours, shape = outputs[name], z[f"{tag}.stage_shapes"][row]
        assert ours.shape == tuple(s for s in shape if s), name
        scale, stats = np.abs(ours).max(), z[f"{tag}.stage_stats"][row]
        close([ours.mean(), ours.std(), scale], stats[:3], rtol * scale, name)
        check_norms(ours.reshape(1, -1), stats[3:4], rtol, name)
        places = [(0, 0), (0, -1)] if ours.ndim == 3 else [(0, ..., 0, 0), (0, ..., -1, -1)]
        for place, key in zip(places, ("first", "last"), strict=True):
            close(ours[place][:8], z[f"{tag}.stage_{key}"][row], rtol * scale, name)


def check_features(z: dict[str, np.ndarray], tag: str, features: np.ndarray, rtol: float) -> None:
    """`features` [B, h, w, C]."""
    ours = nchw(features)
    atol = rtol * np.abs(ours).max()
    assert ours.shape == tuple(z[f"{tag}.feat_shape"])
    close(ours[:, :8], z[f"{tag}.feat_slice"], atol)
    close(ours[:, -8:, -1, -1], z[f"{tag}.feat_last_channels"], atol)
    for name, pooled in (("avg_pool", ours.mean((2, 3))), ("max_pool", ours.max((2, 3)))):
        close(pooled[:, :64], z[f"{tag}.{name}"], atol, name)
        check_norms(pooled, z[f"{tag}.{name}_norm"], rtol, name)


def check_vector(z: dict[str, np.ndarray], key: str, ours: np.ndarray, rtol: float) -> None:
    """The first 64 values of `ours` [B, n] and its norms."""
    close(ours[:, :64], z[key], rtol * np.abs(ours).max(), key)
    check_norms(ours, z[f"{key}_norm"], rtol, key)


def nets() -> list[str]:
    """The networks of the files."""
    found = [name for name in fixtures.names("backbones", "backbone_*") if name in FORWARD]
    return [name.removeprefix("backbone_") for name in found]


def cases() -> list[Any]:
    """Every network and image size of the files; slow, except for the smallest images of networks other than MiT."""
    parameters = []
    for net in nets():
        z, _ = fixtures.load("backbones", f"backbone_{net}")
        tags = [key.removesuffix(".feat_shape") for key in z if key.endswith(".feat_shape")]
        smallest = min(tags, key=lambda tag: (int(tag.split("_")[0].split("x")[-1]), len(tag)))
        for tag in tags:
            # test_hugging_face covers MiT-B1.
            marks = [] if tag == smallest and "mit_b" not in net else [pytest.mark.slow]
            parameters.append(pytest.param(net, tag, marks=marks))
    return parameters


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("net", "tag"), cases())
def test_forward(net: str, tag: str) -> None:
    """Features, pooled features, tokens, logits and the outputs of all stages, float64."""
    z, meta = fixtures.load("backbones", f"backbone_{net}")
    module, config, _ = NETS[net]
    rtol, seed = meta["tolerance"]["float64"], meta["seed"]
    size = tag.removesuffix("_transform_input")
    x = image(seed, size, tuple(meta["sizes"][size]))
    seen = x[:, :, : x.shape[2] // 16 * 16, : x.shape[3] // 16 * 16] if module is deit else x
    checksum = [seen.sum(), np.abs(seen).sum(), seen.flat[0], seen.flat[-1]]
    np.testing.assert_allclose(checksum, z[f"{tag}.input_checksum"], rtol=1e-9)
    params, stats = rebuild(net, seed, x.shape[2:], meta["weight_sums"])

    features, tokens, outputs = network_of(net, size != tag)(params, stats, nhwc(x))
    check_features(z, tag, features, rtol)
    known = {"feat_shape", "feat_slice", "feat_last_channels", "input_checksum"}
    known |= {"avg_pool", "max_pool", "avg_pool_norm", "max_pool_norm"}
    known |= {"stage_shapes", "stage_stats", "stage_first", "stage_last"}
    if f"{tag}.stage_shapes" in z:
        check_stages(z, meta, tag, outputs, rtol)
    if module is deit:
        for position, name in enumerate(("cls", "dist")[: 1 + config.distilled]):
            check_vector(z, f"{tag}.{name}", tokens[:, position], rtol)
            known |= {name, f"{name}_norm"}
    if f"{tag}.logits" in z:
        vectors = tokens.swapaxes(0, 1) if module is deit else [features.mean((1, 2))]
        check_vector(z, f"{tag}.logits", logits_of(net, seed, vectors), rtol)
        known |= {"logits", "logits_norm"}
    assert {key.removeprefix(f"{tag}.") for key in z if key.startswith(f"{tag}.")} <= known


def as_trees(tensors: dict[str, np.ndarray]) -> tuple[PyTree, PyTree]:
    """(params, stats) from converted tensors."""
    parts = (f"backbone/{part}/" for part in ("params", "stats"))
    return tuple(converted.subtree(tensors, part) for part in parts)  # type: ignore[return-value]


@pytest.mark.parametrize("net", nets())
def test_published_sizes(net: str) -> None:
    """All names and shapes of a published state_dict, and its number of parameters."""
    _, meta = fixtures.load("backbones", f"backbone_{net}")
    params, stats = (
        {torch_name(NETS[net][1].name, path): torch_shape(path, shape) for path, shape in t.items()}
        for t in shapes(net)
    )
    if "mit_b" not in net:
        params |= classifier_shapes(net)
    tracked = {k.replace("running_mean", "num_batches_tracked"): () for k in stats if "mean" in k}
    ours = params | stats | tracked
    lines = "\n".join(f"{key}:{','.join(map(str, ours[key]))}" for key in sorted(ours))
    assert len(ours) == meta["n_state_keys"]
    assert zlib.crc32(lines.encode()) == meta["state_key_crc"]
    assert sum(int(np.prod(shape)) for shape in params.values()) == meta["n_params"]


HF_TO_AUTHORS = [  # written independently of the conversion; stages are counted from 0 there
    ("segformer.encoder.", ""),
    ("attention.self.layer_norm", "attn.norm"),
    ("attention.self.sr", "attn.sr"),
    ("attention.output.dense", "attn.proj"),
    ("layer_norm_1", "norm1"),
    ("layer_norm_2", "norm2"),
    ("mlp.dense1", "mlp.fc1"),
    ("mlp.dense2", "mlp.fc2"),
]


def hf_tensor(key: str, drawn: Callable[[str], np.ndarray]) -> np.ndarray:
    """The tensor of a key of Hugging Face, from tensors by the authors' names."""
    if key.startswith("classifier."):
        return drawn(key.replace("classifier", "head"))
    for theirs, ours in HF_TO_AUTHORS:
        key = key.replace(theirs, ours)
    parts = key.split(".")
    stage = int(parts[1]) + 1
    if parts[0] == "layer_norm":
        return drawn(f"norm{stage}.{parts[2]}")
    if parts[0] == "patch_embeddings":
        layer = "norm" if parts[2] == "layer_norm" else "proj"
        return drawn(f"patch_embed{stage}.{layer}.{parts[3]}")
    rest = ".".join(parts[2:])
    for half, name in enumerate(("key", "value")):
        if f"attention.self.{name}" in rest:
            whole = drawn(f"block{stage}.{rest.replace(f'attention.self.{name}', 'attn.kv')}")
            return np.split(whole, 2)[half]
    return drawn(f"block{stage}.{rest.replace('attention.self.query', 'attn.q')}")


OF_HUGGING_FACE = [name for name in fixtures.names("backbones") if name in HUGGING_FACE]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if "b2" in n else ()) for n in OF_HUGGING_FACE]
)
def test_hugging_face(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversion from Hugging Face's names; outputs with the authors' epsilons and with those of Hugging Face."""
    z, meta = fixtures.load("backbones", name)
    net, seed = name.removeprefix("backbone_").removesuffix("_hf"), meta["seed"]
    params, _ = shapes(net)
    drawable = {torch_name("mit", path): torch_shape(path, shape) for path, shape in params.items()}
    drawable |= {"head.weight": (1000, 512), "head.bias": (1000,)}
    tensors = {key: hf_tensor(key, lambda k: draw(seed, k, drawable[k])) for key in meta["hf_keys"]}
    converted = convert({name: tensors})
    assert (converted.layout, converted.network.config) == ("Hugging Face", NETS[net][1])
    params, stats = as_trees(converted.tensors)
    x = described_image(meta)
    rtol = meta["tolerance"]["float64"]

    @partial(jax.jit, static_argnums=2)
    def run(params: PyTree, x: np.ndarray, epsilon: float) -> jax.Array:
        monkeypatch.setattr(mit, "OUTER", epsilon)
        return nchw(mit.build(NETS[net][1]).apply(params, stats, x, train=False)[0])

    authors, theirs = (np.asarray(run(params, x, epsilon)) for epsilon in (mit.OUTER, 1e-5))
    close(authors[:, :8], z["nvlabs_feat_slice"], rtol * np.abs(authors).max())
    assert theirs.shape == tuple(z["feat_shape"])
    close(theirs[:, :8], z["feat_slice"], rtol * np.abs(theirs).max())
    check_vector(z, "avg_pool", theirs.mean((2, 3)), rtol)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", fixtures.names("backbones", "resnet50_train"))
def test_training(name: str) -> None:
    """Batch statistics, running statistics and gradients of one training step."""
    z, meta = fixtures.load("backbones", name)
    x = described_image(meta)
    params, stats = rebuild("resnet50", meta["seed"], x.shape[1:3], {})
    backbone = resnet.build(resnet.Config())

    @partial(jax.jit, donate_argnums=0)  # the gradients take the memory of the parameters
    @partial(jax.value_and_grad, has_aux=True)
    def loss(params: PyTree, stats: PyTree, x: jax.Array) -> Any:
        features, updated = backbone.apply(params, stats, x, train=True)
        return jnp.mean(features.mean((1, 2)) ** 2), (features, updated)

    (value, (features, updated)), grads = jax.tree.map(np.asarray, loss(params, stats, x))
    rtol = meta["tolerance"]["float64"]
    ours = nchw(features)
    assert ours.shape == tuple(z["feat_shape"])
    np.testing.assert_allclose(value, z["loss"], rtol=rtol)
    close(ours[:, :8], z["feat_slice"], rtol * np.abs(ours).max())
    check_vector(z, "avg_pool", ours.mean((2, 3)), rtol)
    logits = logits_of("resnet50", meta["seed"], [features.mean((1, 2))])
    close(logits[:, : z["logits"].shape[1]], z["logits"], rtol * np.abs(logits).max())
    running = {torch_name("resnet", path): leaf for path, leaf in flatten_dict(updated).items()}
    for row, bn in enumerate(meta["bn_names"]):
        for leaf, key in (("running_mean", "bn_mean"), ("running_var", "bn_var")):
            ours, name = running[f"{bn}.{leaf}"], f"{bn}.{leaf}"
            close(ours[:8], z[f"{key}_first8"][row], rtol * np.abs(ours).max(), name)
            check_norms(ours[None], z[f"{key}_norm"][row], rtol, name)
    of_paths = flatten_dict(grads).items()
    gradient = {torch_name("resnet", path): to_torch(path, leaf) for path, leaf in of_paths}
    assert set(gradient) == set(meta["grad_names"])
    for row, key in enumerate(meta["grad_names"]):
        ours = gradient[key].ravel()
        close(ours[:8], z["grad_first8"][row], rtol * np.abs(ours).max(), key)
        check_norms(ours[None], z["grad_norm"][row], rtol, key)


def nhwc(x: np.ndarray) -> np.ndarray:
    return x.transpose(0, 2, 3, 1)


def pooled(window: int, stride: int, padding: int, ceil: bool) -> Callable[..., Any]:
    return lambda x, z: layers.MaxPool(window, stride, padding, ceil).apply({}, x)


def convolved(weight: str, size: int, stride: int, padding: int) -> Callable[..., Any]:
    def run(x: Any, z: dict[str, np.ndarray]) -> Any:
        kernel = to_jax_axes(("kernel",), z[weight])
        channels = kernel.shape[-1]
        options = {"groups": channels if weight == "dw3" else 1, "dtype": None, "name": "conv"}
        layer = layers.Conv(channels, size, stride, padding=padding, **options)
        return layer.apply({"params": {"kernel": kernel}}, x)

    return run


OPS: dict[str, Callable[..., Any]] = {
    "max_k3s2p1_floor": pooled(3, 2, 1, False),
    "max_k3s2p0_ceil": pooled(3, 2, 0, True),
    "max_k2s2p0_ceil": pooled(2, 2, 0, True),
    "max_k3s1p1_ceil": pooled(3, 1, 1, True),
    "avg_k3s1p1_count_pad": lambda x, z: layers.AveragePool().apply({}, x),
    "conv_k3s2p1": convolved("w3", 3, 2, 1),
    "dwconv_k3s1p1": convolved("dw3", 3, 1, 1),
    "conv_k7s2p3": convolved("w7", 7, 2, 3),
    "conv_k7s4p3": convolved("w7", 7, 4, 3),
}
UNUSED = {"avg_k3s1p1_nopad", "adaptive_avg_4x4"}  # not used by any backbone
INPUTS = {"x", "w3", "w7", "dw3", "weight", "bias", "running_mean", "running_var"}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", fixtures.names("backbones", "ops"))
def test_layers(name: str) -> None:
    """Pooling, convolutions, GELU, layer norm and batch norm, separately."""
    z, meta = fixtures.load("backbones", name)

    @jax.jit
    def compute(z: dict[str, jax.Array]) -> dict[str, jax.Array]:
        found = {}
        for size in {key.split(".")[0] for key in z if key[0].isdigit()}:
            weights = {name: z[f"{size}.{name}"] for name in ("w3", "w7", "dw3")}
            x = nhwc(z[f"{size}.x"])
            found |= {f"{size}.{op}": nchw(run(x, weights)) for op, run in OPS.items()}
        found["gelu.exact"] = nn.gelu(z["gelu.x"], approximate=False)
        found["gelu.tanh"] = nn.gelu(z["gelu.x"], approximate=True)
        for key in [key for key in z if key.startswith("ln.eps")]:
            layer = layers.LayerNorm(float(key.removeprefix("ln.eps")), affine=False)
            found[key] = layer.apply({}, z["ln.x"])
        variables = {
            "params": {"scale": z["bn.weight"], "bias": z["bn.bias"]},
            "batch_stats": {"mean": z["bn.running_mean"], "var": z["bn.running_var"]},
        }
        x = nhwc(z["bn.x"])
        found["bn.eval"] = nchw(batch_norm.BatchNorm().apply(variables, x, False))
        for prefix, momentum in (("bn.", 0.1), ("bn.m09.", 0.9)):
            norm = batch_norm.BatchNorm(momentum)
            normed, new = norm.apply(variables, x, True, mutable=["batch_stats"])
            found["bn.train"] = nchw(normed)
            for key, value in new["batch_stats"].items():
                found[f"{prefix}new_running_{key}"] = value
        return found

    tolerance = meta["tolerance"]["float64"]
    found = compute(z)
    assert {key for key in z if key.split(".")[-1] not in INPUTS | UNUSED} == set(found)
    for key, value in found.items():
        np.testing.assert_allclose(value, z[key], rtol=tolerance, atol=tolerance, err_msg=key)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", fixtures.names("backbones", "bn_inception_forward"))
def test_bn_inception_of_hist(name: str) -> None:
    """The module of HIST's authors, with weights drawn in the order of its parameters and vectors stored as rows."""
    z, meta = fixtures.load("backbones", name)
    tensors = {}
    for k, (key, kind, shape) in enumerate(zip(z["names"], z["kinds"], z["shapes"], strict=True)):
        v = np.random.RandomState(meta["seed"] + k).standard_normal(json.loads(shape))
        tensors[key] = {
            "conv_weight": v * np.sqrt(2 / np.prod(v.shape[1:])),
            "bn_weight": 1 + 0.1 * v,
            "bn_running_var": 0.5 + np.abs(v),
        }.get(kind, 0.1 * v)
        if kind.startswith("bn"):
            tensors[key] = tensors[key][None]  # as in the published file
    converted = convert({name: tensors})
    assert converted.layout == "Cadene"
    params, stats = as_trees(converted.tensors)
    size = len(z["features"]), 3, meta["input_size"], meta["input_size"]
    x = np.random.RandomState(meta["seed"] + 100000).standard_normal(size)
    features = nchw(network_of("bninception")(params, stats, nhwc(x))[0])
    equal = partial(np.testing.assert_allclose, **meta["tolerance"]["float64"])
    equal(features, z["features"])
    equal(features.mean((2, 3)) + features.max((2, 3)), z["pooled"])
