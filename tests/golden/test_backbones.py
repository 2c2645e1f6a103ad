"""The backbones against torch: torchvision's, Cadene's, timm's, SegFormer's and Hugging Face's definitions."""

import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import ModuleType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.backbones import _layers, bn_inception, deit, googlenet, mit, resnet
from dml_jax.backbones._names import CLASSIFIERS, from_torch, to_torch, torch_name
from tests.golden import fixtures

NETS: dict[str, tuple[ModuleType, Any, type[nn.Module]]] = {
    "resnet50": (resnet, resnet.resnet50(), resnet.ResNet),
    "bninception": (bn_inception, bn_inception.Config(), bn_inception.BNInception),
    "googlenet": (googlenet, googlenet.Config(transform_input=False), googlenet.GoogLeNet),
    "deit_small": (deit, deit.deit_small(), deit.VisionTransformer),
    "deit_small_distilled": (deit, deit.deit_small_distilled(), deit.VisionTransformer),
    "mit_b1": (mit, mit.mit_b1(), mit.MixTransformer),
    "mit_b2": (mit, mit.mit_b2(), mit.MixTransformer),
}
FORWARD = {f"backbone_{net}" for net in NETS}
HUGGING_FACE = {"backbone_mit_b1_hf", "backbone_mit_b2_hf"}
OTHERS = {"resnet50_train", "ops", "bn_inception_forward"}
CHEAP = 96  # larger sides are marked slow


def test_every_file_is_known() -> None:
    assert set(fixtures.names("backbones")) <= FORWARD | HUGGING_FACE | OTHERS


# The weights of the files are not stored but drawn, key by key.


def draw(seed: int, key: str, shape: tuple[int, ...]) -> np.ndarray:
    """The rule of the files, in torch's layout, float64."""
    n = np.random.default_rng(zlib.crc32(f"{seed}:{key}".encode())).standard_normal(shape)
    if key.endswith("running_mean"):
        return 0.1 * n
    if key.endswith("running_var"):
        return 0.5 + np.abs(n)
    if len(shape) == 4:
        return n * np.sqrt(2 / (shape[1] * shape[2] * shape[3]))
    if len(shape) == 3:
        return 0.5 * n
    if len(shape) == 2:
        return n * np.sqrt(1 / shape[1])
    return 1 + 0.1 * n if key.endswith("weight") else 0.1 * n


def image(seed: int, tag: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(f"{seed}:input:{tag}".encode())).standard_normal(shape)


def leaves(tree: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield tuple(p.key for p in path), leaf


@cache
def shapes(net: str, image_shape: tuple[int, int]) -> tuple[Any, Any]:
    """Shapes of (params, stats)."""
    module, config, _ = NETS[net]
    return jax.eval_shape(lambda: module.build(config).init(jax.random.key(0), image_shape))


def torch_shape(path: tuple[str, ...], leaf: Any) -> tuple[int, ...]:
    return to_torch(path, np.broadcast_to(np.zeros(()), leaf.shape)).shape


def rebuild(net: str, seed: int, image_shape: tuple[int, int], sums: dict[str, float]) -> tuple[Any, Any]:
    """(params, stats) in float64; `sums` are of some tensors, by torch name."""
    module, _, _ = NETS[net]
    architecture = module.__name__.rpartition(".")[2]
    checked = set()

    def fill(path: Any, leaf: Any) -> np.ndarray:
        path = tuple(p.key for p in path)
        name = torch_name(architecture, path)
        tensor = draw(seed, name, torch_shape(path, leaf))
        if name in sums:
            np.testing.assert_allclose(tensor.sum(), sums[name], rtol=1e-9)
            checked.add(name)
        return np.ascontiguousarray(from_torch(path, tensor))

    params, stats = [jax.tree_util.tree_map_with_path(fill, tree) for tree in shapes(net, image_shape)]
    heads = tuple(f"{name}." for name in CLASSIFIERS[architecture])
    assert checked == {name for name in sums if not name.startswith(heads)}
    return params, stats


def classifiers(net: str, seed: int) -> dict[str, Any]:
    """The published classifiers of a network, float64."""
    module, config, _ = NETS[net]
    architecture = module.__name__.rpartition(".")[2]
    names = CLASSIFIERS[architecture][: 2 if getattr(config, "distilled", False) else 1]
    channels = module.build(config).channels
    return {
        name: {
            "kernel": draw(seed, f"{name}.weight", (1000, channels)).T,
            "bias": draw(seed, f"{name}.bias", (1000,)),
        }
        for name in names
    }


def nchw(x: Any) -> np.ndarray:
    return np.asarray(x).transpose(0, 3, 1, 2)


def tokens_of(x: Any) -> np.ndarray:
    """A map as tokens [B, N, C], as torch's transformers keep it."""
    x = np.asarray(x)
    return x.reshape(x.shape[0], -1, x.shape[-1])


def stages(net: str, captured: Any) -> dict[str, np.ndarray]:
    """Outputs of modules under their torch names, in torch's layout (tokens [B, N, C] in transformers)."""
    module, config, _ = NETS[net]
    if module is resnet:
        last = {f"layer{s + 1}": captured[f"layer{s + 1}_{d - 1}"] for s, d in enumerate(config.depths)}
        named = last | {name: captured[name] for name in ("conv1", "bn1", "maxpool")}
        return {name: nchw(out["__call__"][0]) for name, out in named.items()}
    if module is bn_inception:
        named = {name: captured[name] for name in ("conv1_7x7_s2", "pool1_3x3_s2", "conv2_3x3", "pool2_3x3_s2")}
        named |= {f"inception_{key}_pool": captured[f"inception_{key}"]["pool"] for key in bn_inception.BLOCKS}
        return {name: nchw(out["__call__"][0]) for name, out in named.items()}
    if module is googlenet:
        return {name: nchw(out["__call__"][0]) for name, out in captured.items() if name != "__call__"}
    found = {}
    for name, out in captured.items():
        if name in ("__call__", "tokens"):
            continue
        torch = torch_name(module.__name__.rpartition(".")[2], (name, "x")).removesuffix(".x")
        found[torch.removesuffix(".proj")] = tokens_of(out["__call__"][0])
    return found


def check_stages(z: dict[str, np.ndarray], meta: dict[str, Any], tag: str, net: str, captured: Any, rtol: float) -> None:
    found = stages(net, captured)
    for row, name in enumerate(meta["stage_names"]):
        ours, shape = found[name], z[f"{tag}.stage_shapes"][row]
        assert ours.shape == tuple(s for s in shape if s), name
        stats = [ours.mean(), ours.std(), np.abs(ours).max(), np.sqrt((ours**2).sum())]
        scale = np.abs(ours).max()
        np.testing.assert_allclose(stats[:3], z[f"{tag}.stage_stats"][row][:3], rtol=0, atol=rtol * scale, err_msg=name)
        np.testing.assert_allclose(stats[3], z[f"{tag}.stage_stats"][row][3], rtol=rtol, err_msg=name)
        first, last = (ours[0, 0, :8], ours[0, -1, :8]) if ours.ndim == 3 else (ours[0, :8, 0, 0], ours[0, :8, -1, -1])
        np.testing.assert_allclose(first, z[f"{tag}.stage_first"][row], rtol=0, atol=rtol * scale, err_msg=name)
        np.testing.assert_allclose(last, z[f"{tag}.stage_last"][row], rtol=0, atol=rtol * scale, err_msg=name)


def check_features(z: dict[str, np.ndarray], tag: str, features: np.ndarray, rtol: float) -> None:
    """`features` [B, h, w, C]."""
    ours = nchw(features)
    close = partial(np.testing.assert_allclose, rtol=0, atol=rtol * np.abs(ours).max())
    assert ours.shape == tuple(z[f"{tag}.feat_shape"])
    close(ours[:, :8], z[f"{tag}.feat_slice"])
    close(ours[:, -8:, -1, -1], z[f"{tag}.feat_last_channels"])
    for name, pooled in (("avg_pool", ours.mean((2, 3))), ("max_pool", ours.max((2, 3)))):
        close(pooled[:, :64], z[f"{tag}.{name}"], err_msg=name)
        np.testing.assert_allclose(np.linalg.norm(pooled, axis=1), z[f"{tag}.{name}_norm"], rtol=rtol, err_msg=name)


def check_vector(z: dict[str, np.ndarray], key: str, ours: np.ndarray, rtol: float) -> None:
    """The first 64 values of `ours` [B, n] and its norms."""
    np.testing.assert_allclose(ours[:, :64], z[key], rtol=0, atol=rtol * np.abs(ours).max(), err_msg=key)
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), z[f"{key}_norm"], rtol=rtol, err_msg=key)


def cases() -> list[Any]:
    found = []
    for name in fixtures.names("backbones", "backbone_*"):
        if name not in FORWARD:
            continue
        z, _ = fixtures.load("backbones", name)
        for tag in sorted(key.removesuffix(".feat_shape") for key in z if key.endswith(".feat_shape")):
            sides = [int(side) for side in tag.removesuffix("_transform_input").split("x")]
            marks = [pytest.mark.slow] if max(sides) > CHEAP else []
            found.append(pytest.param(name.removeprefix("backbone_"), tag, marks=marks, id=f"{name}-{tag}"))
    return found


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("net", "tag"), cases())
def test_forward(net: str, tag: str) -> None:
    """Features, pools, tokens, logits and every stage, float64."""
    z, meta = fixtures.load("backbones", f"backbone_{net}")
    module, config, network = NETS[net]
    rtol, seed = meta["tolerance"]["float64"], meta["seed"]
    size = tag.removesuffix("_transform_input")
    if size != tag:
        config = googlenet.Config(transform_input=True)
    x = image(seed, size, tuple(meta["sizes"][size]))
    seen = x[:, :, : x.shape[2] // 16 * 16, : x.shape[3] // 16 * 16] if module is deit else x
    checksum = [seen.sum(), np.abs(seen).sum(), seen.flat[0], seen.flat[-1]]
    np.testing.assert_allclose(checksum, z[f"{tag}.input_checksum"], rtol=1e-9)
    params, stats = rebuild(net, seed, x.shape[2:], meta["weight_sums"])

    @jax.jit
    def run(params: Any, stats: Any, x: jax.Array) -> Any:
        variables = {"params": params, "batch_stats": stats}
        kinds = {"mutable": ["intermediates"], "capture_intermediates": True}
        if module is deit:
            tokens, more = network(config).apply(variables, x, method="tokens", **kinds)
            features = module.build(config).apply(params, stats, x, train=False)[0]
            return features, tokens, more["intermediates"]
        features, more = network(config).apply(variables, x, False, **kinds)
        return features, None, more["intermediates"]

    features, tokens, captured = run(params, stats, x.transpose(0, 2, 3, 1))
    check_features(z, tag, features, rtol)
    known = {"feat_shape", "feat_slice", "feat_last_channels", "avg_pool", "max_pool", "avg_pool_norm", "max_pool_norm"}
    known |= {"input_checksum", "stage_shapes", "stage_stats", "stage_first", "stage_last"}
    if f"{tag}.stage_shapes" in z:
        check_stages(z, meta, tag, net, captured, rtol)
    if module is deit:
        for place, name in enumerate(("cls", "dist")[: 1 + config.distilled]):
            check_vector(z, f"{tag}.{name}", np.asarray(tokens[:, place]), rtol)
            known |= {name, f"{name}_norm"}
    if f"{tag}.logits" in z:
        heads = classifiers(net, seed)
        if module is deit:
            logits = deit.logits(heads, tokens)
        else:
            logits = _layers.pooled_logits(heads[CLASSIFIERS[module.__name__.rpartition(".")[2]][0]], features)
        check_vector(z, f"{tag}.logits", np.asarray(logits), rtol)
        known |= {"logits", "logits_norm"}
    assert {key.removeprefix(f"{tag}.") for key in z if key.startswith(f"{tag}.")} <= known
