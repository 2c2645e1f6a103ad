"""All backbones: shapes, initialisation, frozen statistics, rematerialisation, precision, errors."""

import math
from dataclasses import replace
from functools import cache, partial
from types import ModuleType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from dml_jax.backbones import bn_inception, deit, dinov3, googlenet, layers, mit, resnet, siglip, vit
from dml_jax.backbones import efficientnet_lite as lite
from dml_jax.backbones.contract import Backbone, PyTree
from dml_jax.config import choices

# Module, config, number of parameters, side of the feature map by side of the image.
PUBLISHED: list[tuple[ModuleType, Any, int, dict[int, int]]] = [
    (resnet, resnet.PUBLISHED["resnet18"], 11_176_512, {224: 7, 227: 8}),
    (resnet, resnet.PUBLISHED["resnet34"], 21_284_672, {224: 7, 227: 8, 256: 8}),
    (resnet, resnet.Config(), 23_508_032, {224: 7, 227: 8, 256: 8}),
    (resnet, resnet.PUBLISHED["resnet101"], 42_500_160, {224: 7}),
    (bn_inception, bn_inception.Config(), 10_270_240, {224: 7, 227: 7, 256: 8}),
    (googlenet, googlenet.Config(), 5_599_904, {224: 7, 227: 7, 256: 8}),
    (deit, deit.Config(), 21_665_664, {224: 14, 227: 14, 256: 16}),
    (deit, deit.Config(distilled=True), 21_666_432, {224: 14}),
    (deit, deit.PUBLISHED["deit_base"], 85_798_656, {224: 14}),
    (vit, vit.PUBLISHED["vit_base"], 85_798_656, {224: 1}),
    (vit, vit.PUBLISHED["vit_large"], 303_301_632, {224: 1}),
    # The files of DINOv2 and DINOv3 also hold a token for masked patches.
    (vit, vit.PUBLISHED["dino_vits16"], 21_665_664, {224: 1}),
    (vit, vit.PUBLISHED["dino_vitb8"], 85_807_872, {224: 1}),
    (vit, vit.PUBLISHED["dinov2_vits14"], 22_056_576 - 384, {518: 1}),
    (vit, vit.PUBLISHED["dinov2_vits14_reg"], 22_056_576 + 3 * 384, {518: 1}),
    (vit, vit.PUBLISHED["dinov2_vitb14"], 86_580_480 - 768, {518: 1}),
    (vit, vit.PUBLISHED["dinov2_vitl14"], 304_368_640 - 1024, {518: 1}),
    (vit, vit.PUBLISHED["dinov2_vitg14"], 1_136_480_768 - 1536, {518: 1}),
    (dinov3, dinov3.PUBLISHED["dinov3_vits16"], 21_596_160, {224: 1}),
    (dinov3, dinov3.PUBLISHED["dinov3_vitb16"], 85_660_416 - 768, {224: 1}),
    (dinov3, dinov3.PUBLISHED["dinov3_vitl16"], 303_129_600 - 1024, {224: 1}),
    (siglip, siglip.PUBLISHED["siglip_vitb16"], 92_884_224, {224: 1}),
    (lite, lite.Config(), 3_371_008, {224: 7, 160: 5, 227: 8}),
    (lite, lite.PUBLISHED["lite1"], 4_135_680, {224: 7, 240: 8}),
    (lite, lite.PUBLISHED["lite2"], 4_811_072, {224: 7, 260: 9}),
    (mit, mit.PUBLISHED["mit_b0"], 3_319_392, {224: 7, 227: 8, 256: 8}),
    (mit, mit.Config(), 13_151_424, {224: 7, 227: 8, 256: 8}),
    (mit, mit.PUBLISHED["mit_b2"], 24_196_288, {224: 7, 227: 8, 256: 8}),
]
TINY: dict[str, Any] = {"depth": 2, "width": 32, "heads": 2, "patch": 8, "drop_path": 0.5}
SMALL: dict[str, tuple[ModuleType, Any]] = {
    "basic": (resnet, resnet.Config(block="basic", depths=(1, 2), widths=(8, 12), stem="small")),
    "bottleneck": (resnet, resnet.Config(depths=(1, 1, 1), widths=(4, 6, 8))),
    "efficientnet_lite": (lite, lite.Config(depths=(1,) * 7, widths=(2, 3, 4, 5, 6, 7, 8), stem=4, channels=12)),
    "deit": (deit, deit.Config(**TINY)),
    "vit": (vit, vit.Config(**TINY, registers=2, mlp="swiglu", layer_scale=0.1, output="patches")),
    "mit": (mit, mit.Config(depths=(1,) * 4, widths=(4, 8, 8, 8), heads=(1, 2, 2, 2), drop_path=0.5)),
}


def named(fast: tuple[str, ...], *slow: str) -> Any:
    """Parametrizes with names of networks, of which some are tested every night."""
    others = [pytest.param(name, marks=pytest.mark.slow) for name in slow]
    return pytest.mark.parametrize("name", [*fast, *others])


every_network = named(("basic", "deit"), "bottleneck", "efficientnet_lite", "mit", "vit")


def run(backbone: Backbone, *, train: bool, key: jax.Array | None = None) -> tuple[np.ndarray, PyTree, PyTree]:
    """(features, new stats, parameters) for random inputs, no larger than MiT needs."""
    params, stats = backbone.init(jax.random.key(0), (32, 32))
    x = np.random.default_rng(1).normal(size=(4, 32, 32, 3)).astype(np.float32)
    apply = jax.jit(lambda p, s, x: backbone.apply(p, s, x, train=train, key=key))
    features, new = apply(params, stats, x)
    return np.asarray(features), new, params


def test_names() -> None:
    names = "bn_inception deit dinov3 efficientnet_lite googlenet mit resnet siglip vit"
    assert choices("backbone") == names.split()
    for module, config, _, _ in PUBLISHED:
        assert config.name == module.__name__.rpartition(".")[2]


@pytest.mark.parametrize(
    ("module", "config", "parameters", "sides"),
    [pytest.param(*case, marks=[] if case is PUBLISHED[0] else [pytest.mark.slow]) for case in PUBLISHED],
)
def test_published_shapes(module: ModuleType, config: Any, parameters: int, sides: dict[int, int]) -> None:
    backbone = module.build(config)

    def features_of(x: jax.Array) -> Any:
        params, stats = backbone.init(jax.random.key(0), x.shape[1:3])
        return params, backbone.apply(params, stats, x, train=True, key=None)[0]

    for side, expected in sides.items():
        x = jax.ShapeDtypeStruct((2, side, side, 3), jnp.float32)
        params, features = jax.eval_shape(features_of, x)
        assert features.shape == (2, expected, expected, backbone.channels)
        if side == next(iter(sides)):
            assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)) == parameters


def published_std(module: ModuleType, path: str, shape: tuple[int, ...]) -> float:
    """Standard deviation of the initial values of a kernel or token, by the formulas of the papers and their code."""
    fan_in = math.prod(shape[:-1])
    if module is resnet:  # He et al. (2015), fan out
        return math.sqrt(2 / (shape[0] * shape[1] * shape[3]))
    if module is bn_inception:  # He et al. (2015), fan in
        return math.sqrt(2 / fan_in)
    if module is googlenet:  # torchvision
        return 0.01
    # He et al. (2015), fan out divided by the number of groups: TensorFlow, in which EfficientNet
    # was published, stores depthwise kernels as [k, k, C, 1].
    if module in (lite, mit) and len(shape) == 4:
        groups = shape[3] if "dwconv" in path or "depthwise_conv" in path else 1
        return math.sqrt(2 / (shape[0] * shape[1] * shape[3] / groups))
    if module in (deit, vit) and path == "patch_embed/kernel":
        return math.sqrt(1 / (3 * fan_in))  # of PyTorch's default, U(±1/sqrt(fan in))
    return 1e-6 if path in ("cls_token", "reg_token") else 0.02  # timm, SegFormer


@pytest.mark.parametrize(
    ("module", "config"),
    [
        (resnet, resnet.Config(block="basic", depths=(1, 1), widths=(32, 64))),
        pytest.param(resnet, resnet.Config(depths=(1, 1, 1, 1)), marks=pytest.mark.slow),
        pytest.param(bn_inception, bn_inception.Config(), marks=pytest.mark.slow),
        pytest.param(googlenet, googlenet.Config(), marks=pytest.mark.slow),
        (deit, deit.Config(depth=1, distilled=True)),
        (vit, vit.Config(depth=1, registers=4, layer_scale=0.1)),
        pytest.param(lite, lite.Config(), marks=pytest.mark.slow),
        (mit, mit.Config(depths=(1, 1, 1, 1), widths=(16, 16, 16, 16), heads=(1, 2, 4, 8))),
    ],
)
def test_initialisation(module: ModuleType, config: Any) -> None:
    """Kernels and tokens are normal with the published standard deviation; scales start at 1 and biases at 0."""
    params, stats = module.build(config).init(jax.random.key(0), (64, 64))
    constants = {"scale": 1, "bias": 0, "mean": 0, "var": 1, "gamma": np.float32(0.1)}
    trees = (traverse_util.flatten_dict(tree, sep="/") for tree in (params, stats))
    for path, leaf in [pair for tree in trees for pair in tree.items()]:
        assert leaf.dtype == jnp.float32, path
        kind = path.rpartition("/")[2]
        if kind in constants:
            np.testing.assert_array_equal(leaf, constants[kind], err_msg=path)
            continue
        z = np.asarray(leaf, np.float64).ravel() / published_std(module, path, leaf.shape)
        error = 5 / math.sqrt(z.size)
        assert abs(z.mean()) < error, path
        assert abs(z.std() - 1) < error / math.sqrt(2), path
        # Of a normal distribution.
        assert abs(np.mean(np.abs(z) < 1) - 0.6827) < error * 0.4655, path


def assert_close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)  # of two programs


@every_network
def test_linen_modules_initialise_themselves(name: str) -> None:
    """`build(config).init` returns the variables of the module's own `init`, with and without rematerialisation."""
    module, config = SMALL[name]
    networks = {lite: "EfficientNetLite", mit: "MixTransformer", resnet: "ResNet"}
    network: Any = getattr(module, networks.get(module, ""), vit.VisionTransformer)
    images = jnp.zeros((1, 32, 32, 3))
    init = jax.jit(network(config).init, static_argnums=2)
    expected = init(jax.random.key(3), images, False)
    for remat in (False, True):
        params, stats = module.build(replace(config, remat=remat)).init(jax.random.key(3), (32, 32))
        jax.tree.map(assert_close, params, expected["params"])
        jax.tree.map(assert_close, stats, expected.get("batch_stats", {}))


@pytest.mark.usefixtures("x64")
def test_gradient_of_layer_norm() -> None:
    """As Flax's, which differentiates the mean and the variance."""
    random = np.random.default_rng(0)
    x, cotangent = random.normal(2, 3, (2, 4, 5, 7))
    variables = {"params": dict(zip(("scale", "bias"), random.normal(2, 3, (2, 7)), strict=True))}
    found = []
    for layer in (layers.LayerNorm(1e-3), nn.LayerNorm(epsilon=1e-3, use_fast_variance=False)):
        pull = lambda *given, apply=layer.apply: jax.vjp(apply, *given)[1](cotangent)  # noqa: E731
        found.append(jax.jit(pull)(variables, x))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), *found)


UPDATES = [(True, False), (True, True), (False, False)]
NETWORKS = SMALL | {m.Config().name: (m, m.Config()) for m in (bn_inception, googlenet)}


@cache
def variables(name: str) -> Any:
    """The shapes of a network's parameters and statistics."""
    module, config = NETWORKS[name]
    return jax.eval_shape(lambda: module.build(config).init(jax.random.key(0), (64, 64)))


@pytest.mark.parametrize(
    ("name", "train", "frozen"),
    [
        pytest.param(name, *case, marks=() if name in SMALL else pytest.mark.slow)
        for name in ("basic", "bottleneck", "efficientnet_lite", "bn_inception", "googlenet")
        for case in UPDATES
    ],
)
def test_when_statistics_are_updated(name: str, train: bool, frozen: bool) -> None:
    """In the jaxpr, the outputs of statistics that stay are the input variables."""
    module, config = NETWORKS[name]
    backbone = module.build(replace(config, freeze_bn=frozen))
    params, stats = variables(name)
    x = jax.ShapeDtypeStruct((2, 64, 64, 3), jnp.float32)
    updated = lambda s, p, x: backbone.apply(p, s, x, train=train)[1]  # noqa: E731
    traced = jax.make_jaxpr(updated)(stats, params, x).jaxpr
    unchanged = [out in traced.invars for out in traced.outvars]
    assert unchanged == [frozen or not train] * len(jax.tree.leaves(stats))


def test_two_updates_of_the_stage_statistics() -> None:
    """Two updates with the same batch equal one with momentum 1 - 0.9^2 = 0.19; the stem's are updated once."""
    config = SMALL["basic"][1]
    once, twice = (run(resnet.build(replace(config, stage_bn_updates=count)), train=True)[1] for count in (1, 2))
    assert_close(twice["bn1"]["mean"], once["bn1"]["mean"])
    for leaf, initial in (("mean", 0), ("var", 1)):
        moved = np.asarray(once["layer2_1"]["bn2"][leaf]) - initial
        np.testing.assert_allclose(twice["layer2_1"]["bn2"][leaf], initial + 1.9 * moved, rtol=1e-5)
    assert not np.allclose(twice["layer1_0"]["bn1"]["mean"], once["layer1_0"]["bn1"]["mean"])


@named(("basic",), "bottleneck", "deit", "mit", "vit")
def test_remat_keeps_fewer_activations_and_the_gradients(name: str) -> None:
    module, config = SMALL[name]
    params, stats = module.build(config).init(jax.random.key(0), (32, 32))
    x = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)
    grads, kept = [], []
    for remat in (False, True):
        backbone = module.build(replace(config, remat=remat))

        def loss(params: PyTree, x: jax.Array, backbone: Backbone = backbone) -> Any:
            features, new = backbone.apply(params, stats, x, train=True, key=None)
            # From a target, as the mean square of normalised features does not depend on the parameters.
            target = np.random.default_rng(2).normal(size=features.shape).astype(np.float32)
            return jnp.mean((features - target) ** 2), new

        grads.append(jax.jit(jax.grad(loss, has_aux=True))(params, x))
        pull = lambda params, loss=loss: jax.vjp(loss, params, x, has_aux=True)[1]  # noqa: E731
        residuals = jax.tree.leaves(jax.eval_shape(pull, params))
        kept.append(sum(array.size for array in residuals))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert kept[1] - parameters < 0.7 * (kept[0] - parameters)
    assert jax.tree.structure(grads[0]) == jax.tree.structure(grads[1])
    for plain, again in zip(*map(jax.tree.leaves, grads), strict=True):
        limit = 1e-5 * float(np.abs(plain).max() + 1e-6)
        np.testing.assert_allclose(again, plain, rtol=2e-4, atol=limit)


@every_network
def test_bfloat16(name: str) -> None:
    """Parameters, statistics and features are float32; features agree with float32's to the precision of bfloat16."""
    module, config = SMALL[name]
    exact, _, _ = run(module.build(config), train=False)
    backbone = module.build(replace(config, dtype="bfloat16"))
    coarse, stats, params = run(backbone, train=False)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, stats))} == {jnp.dtype("float32")}
    assert coarse.dtype == np.float32
    assert not np.array_equal(exact, coarse)
    assert np.abs(exact - coarse).max() < 0.05 * np.abs(exact).max()
    if stats:
        _, new, _ = run(backbone, train=True)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(new))


@named(("deit",), "mit")
def test_stochastic_depth(name: str) -> None:
    module, config = SMALL[name]
    backbone = module.build(config)
    quiet, _, _ = run(backbone, train=True)
    evaluated, _, _ = run(backbone, train=False)
    np.testing.assert_allclose(quiet, evaluated, rtol=1e-5, atol=1e-5)
    for train in (True, False):
        dropped, _, _ = run(backbone, train=train, key=jax.random.key(0))
        assert not np.allclose(quiet, dropped)
