"""What every backbone promises: shapes, initialisation, frozen statistics, recomputation, precision, errors."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.backbones import bn_inception, deit, googlenet, mit, resnet
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import DropPath
from dml_jax.backbones.pixels import CAFFE, Pixels, preprocess
from dml_jax.config import choices
from dml_jax.config_schema import validate
from dml_jax.errors import ConfigError

PUBLISHED: list[tuple[Any, Any, int, dict[int, int]]] = [  # module, config, parameters, side of the map by image side
    (resnet, resnet.resnet18(), 11_176_512, {224: 7, 227: 8, 256: 8}),
    (resnet, resnet.resnet34(), 21_284_672, {224: 7, 227: 8, 256: 8}),
    (resnet, resnet.resnet50(), 23_508_032, {224: 7, 227: 8, 256: 8}),
    (resnet, resnet.resnet101(), 42_500_160, {224: 7}),
    (bn_inception, bn_inception.Config(), 10_270_240, {224: 7, 227: 7, 256: 8}),
    (googlenet, googlenet.Config(), 5_599_904, {224: 7, 227: 7, 256: 8}),
    (deit, deit.deit_small(), 21_665_664, {224: 14, 227: 14, 256: 16}),
    (deit, deit.deit_small_distilled(), 21_666_432, {224: 14}),
    (mit, mit.mit_b0(), 3_319_392, {224: 7, 227: 8, 256: 8}),
    (mit, mit.mit_b1(), 13_151_424, {224: 7, 227: 8, 256: 8}),
    (mit, mit.mit_b2(), 24_196_288, {224: 7, 227: 8, 256: 8}),
]
SMALL: dict[str, tuple[Any, Any]] = {
    "basic": (resnet, resnet.Config(block="basic", depths=(1, 2), widths=(8, 12), stem="small")),
    "bottleneck": (resnet, resnet.Config(depths=(1, 1, 1), widths=(4, 6, 8))),
    "deit": (deit, deit.Config(depth=2, width=32, heads=2, patch=8, drop_path=0.5)),
    "mit": (mit, mit.Config(depths=(1, 1, 1, 1), widths=(4, 8, 8, 8), heads=(1, 2, 2, 2), drop_path=0.5)),
}


@pytest.fixture(
    params=["basic", "deit", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bottleneck", "mit"))]
)
def small(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    return SMALL[request.param]


def run(backbone: Backbone, side: int = 32, *, train: bool, key: Any = None, seed: int = 0) -> tuple[Any, Any, Any]:
    """(features, new stats, old stats) on random pixels."""
    params, stats = backbone.init(jax.random.key(seed), (side, side))
    x = jax.random.normal(jax.random.key(1), (4, side, side, 3))
    features, new = jax.jit(lambda p, s, x: backbone.apply(p, s, x, train=train, key=key))(params, stats, x)
    return features, new, stats


def test_the_names_configurations_use() -> None:
    assert choices("backbones") == ["bn_inception", "deit", "googlenet", "mit", "resnet"]
    for module, config, _, _ in PUBLISHED:
        assert config.name == module.__name__.rpartition(".")[2]


@pytest.mark.parametrize(
    ("module", "config", "parameters", "sides"),
    [pytest.param(*case, marks=[pytest.mark.slow] if case[0] not in (resnet, deit) else []) for case in PUBLISHED],
)
def test_published_shapes(module: Any, config: Any, parameters: int, sides: dict[int, int]) -> None:
    backbone = module.build(config)
    for side, expected in sides.items():
        params, stats = jax.eval_shape(lambda side=side: backbone.init(jax.random.key(0), (side, side)))
        x = jax.ShapeDtypeStruct((2, side, side, 3), jnp.float32)
        features, _ = jax.eval_shape(lambda p, s, x: backbone.apply(p, s, x, train=True, key=None), params, stats, x)
        assert features.shape == (2, expected, expected, backbone.channels)
        if side == 224:
            assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)) == parameters


def test_any_image_shape(small: tuple[Any, Any]) -> None:
    module, config = small
    backbone = module.build(config)
    params, stats = backbone.init(jax.random.key(0), (40, 64))
    features, _ = jax.jit(lambda x: backbone.apply(params, stats, x, train=False))(jnp.ones((1, 40, 64, 3)))
    factor = {
        "deit": 8,
        "mit": 32,
        "resnet": 16 if config.name == "resnet" and config.stem == "imagenet" else 2,
    }
    side = factor[config.name]
    assert features.shape == (1, -(-40 // side), 64 // side, backbone.channels)


def test_initialisation() -> None:
    """Kaiming fan out for convolutions, ones and zeros for the rest; another key gives other numbers."""
    params, stats = resnet.build(resnet.resnet18()).init(jax.random.key(0), (64, 64))
    for name in ("layer1_0", "layer3_1"):
        kernel = np.asarray(params[name]["conv2"]["kernel"])
        np.testing.assert_allclose(kernel.std(), math.sqrt(2 / (9 * kernel.shape[-1])), rtol=0.01)
        assert abs(kernel.mean()) < 1e-3
        np.testing.assert_array_equal(params[name]["bn1"]["scale"], 1)
        np.testing.assert_array_equal(params[name]["bn1"]["bias"], 0)
        np.testing.assert_array_equal(stats[name]["bn1"]["var"], 1)
        np.testing.assert_array_equal(stats[name]["bn1"]["mean"], 0)
    first, second = (np.ravel(params["layer1_0"][c]["kernel"]) for c in ("conv1", "conv2"))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02
    backbone = resnet.build(SMALL["basic"][1])
    again = [backbone.init(jax.random.key(k), (16, 16))[0]["conv1"]["kernel"] for k in (0, 0, 1)]
    np.testing.assert_array_equal(again[0], again[1])
    assert not np.allclose(again[0], again[2])


def test_initialisation_of_transformers() -> None:
    params, _ = deit.build(deit.Config(depth=1)).init(jax.random.key(0), (64, 64))
    np.testing.assert_allclose(np.std(params["blocks_0"]["attn"]["qkv"]["kernel"]), 0.02, rtol=0.02)
    np.testing.assert_allclose(np.std(params["pos_embed"]), 0.02, rtol=0.05)
    params, _ = mit.build(SMALL["mit"][1]).init(jax.random.key(0), (32, 32))
    depthwise = params["stage4_block0"]["mlp"]["dwconv"]["kernel"]
    np.testing.assert_allclose(np.std(depthwise), math.sqrt(2 / 9), rtol=0.2)


def test_statistics_move_in_training_only(small: tuple[Any, Any]) -> None:
    module, config = small
    if config.name in ("deit", "mit"):
        assert run(module.build(config), train=True)[1] == {}
        return
    backbone = module.build(config)
    _, new, old = run(backbone, train=True)
    assert jax.tree.structure(new) == jax.tree.structure(old)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: not np.allclose(a, b), new, old)))
    _, kept, old = run(backbone, train=False)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, kept, old)))


def test_frozen_statistics() -> None:
    """Frozen, training equals evaluation and nothing moves."""
    backbone = resnet.build(replace(SMALL["basic"][1], freeze_bn=True))
    trained, new, old = run(backbone, 16, train=True)
    evaluated, _, _ = run(backbone, 16, train=False)
    np.testing.assert_allclose(trained, evaluated, rtol=1e-5, atol=1e-6)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, new, old)))


@pytest.mark.parametrize(
    ("module", "config", "parameters", "sides"),
    [pytest.param(*case, marks=[pytest.mark.slow] if case[0] not in (resnet, deit) else []) for case in PUBLISHED],
)
@pytest.mark.parametrize("frozen", [False, True])
def test_which_statistics_training_touches(module: Any, config: Any, parameters: int, sides: Any, frozen: bool) -> None:
    """Read off the program: frozen statistics come out as the variables that went in."""
    if not hasattr(config, "freeze_bn"):
        return
    backbone = module.build(replace(config, freeze_bn=frozen))
    params, stats = jax.eval_shape(lambda: backbone.init(jax.random.key(0), (64, 64)))
    x = jax.ShapeDtypeStruct((2, 64, 64, 3), jnp.float32)
    traced = jax.make_jaxpr(lambda s, p, x: backbone.apply(p, s, x, train=True, key=None)[1])(stats, params, x).jaxpr
    untouched = [out in traced.invars for out in traced.outvars]
    assert untouched == [frozen] * len(jax.tree.leaves(stats))


def test_stage_statistics_moved_twice() -> None:
    """Two updates with the same batch are one with momentum 1 - 0.9^2 = 0.19; the stem's moves once."""
    config = SMALL["basic"][1]
    once, twice, heavy = (
        run(resnet.build(c), 16, train=True)[1]
        for c in (config, replace(config, stage_bn_updates=2), replace(config, bn_momentum=0.19))
    )
    np.testing.assert_array_equal(twice["bn1"]["mean"], once["bn1"]["mean"])
    for leaf in ("mean", "var"):
        np.testing.assert_allclose(twice["layer2_1"]["bn2"][leaf], heavy["layer2_1"]["bn2"][leaf], rtol=1e-5)
    assert not np.allclose(twice["layer1_0"]["bn1"]["mean"], once["layer1_0"]["bn1"]["mean"])


def test_fixed_scales() -> None:
    """Scales and biases leave the parameters (106 tensors in ResNet-50, 20,032 numbers in BN-Inception) and count."""
    for module, config, tensors, numbers in (
        (resnet, resnet.resnet50(), 106, 53_120),
        (bn_inception, bn_inception.Config(), 138, 20_032),
        (googlenet, googlenet.Config(), 114, 14_560),
    ):
        trained, fixed = (
            jax.eval_shape(lambda m=module, c=c: m.build(c).init(jax.random.key(0), (64, 64)))
            for c in (config, replace(config, freeze_bn_affine=True))
        )
        count = lambda tree: (len(jax.tree.leaves(tree)), sum(leaf.size for leaf in jax.tree.leaves(tree)))  # noqa: E731
        for side, sign in ((0, 1), (1, -1)):
            gone = np.subtract(count(trained[side]), count(fixed[side]))
            assert tuple(sign * gone) == (tensors, numbers)
    backbone = resnet.build(replace(SMALL["basic"][1], freeze_bn_affine=True))
    params, stats = backbone.init(jax.random.key(0), (16, 16))
    stats["layer1_0"]["bn2"] |= {"scale": 3 * jnp.ones(8), "bias": jnp.arange(8.0)}
    x = jax.random.normal(jax.random.key(1), (4, 16, 16, 3))
    ours, new = jax.jit(lambda p, s: backbone.apply(p, s, x, train=True))(params, stats)
    np.testing.assert_array_equal(new["layer1_0"]["bn2"]["bias"], np.arange(8.0))
    plain = resnet.build(SMALL["basic"][1])
    params, stats = plain.init(jax.random.key(0), (16, 16))
    params["layer1_0"]["bn2"] = {"scale": 3 * jnp.ones(8), "bias": jnp.arange(8.0)}
    theirs, _ = jax.jit(lambda p, s: plain.apply(p, s, x, train=True))(params, stats)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["basic", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bottleneck", "deit", "mit"))]
)
def test_recomputation_changes_nothing(name: str) -> None:
    module, config = SMALL[name]
    grads = []
    for recompute in (False, True):
        backbone = module.build(replace(config, remat=recompute))
        params, stats = backbone.init(jax.random.key(0), (32, 32))
        x = jax.random.normal(jax.random.key(1), (2, 32, 32, 3))

        def loss(params: Any, backbone: Any = backbone, stats: Any = stats, x: Any = x) -> Any:
            features, new = backbone.apply(params, stats, x, train=True, key=None)
            return jnp.mean(features**2), new

        grads.append(jax.jit(jax.grad(loss, has_aux=True))(params))
    assert jax.tree.structure(grads[0]) == jax.tree.structure(grads[1])
    for plain, recomputed in zip(*map(jax.tree.leaves, grads), strict=True):
        np.testing.assert_allclose(recomputed, plain, rtol=2e-4, atol=1e-5 * float(np.abs(plain).max() + 1e-6))


def test_bfloat16(small: tuple[Any, Any]) -> None:
    """Parameters and statistics stay float32, features come back float32, numbers agree to bfloat16's precision."""
    module, config = small
    exact, _, _ = run(module.build(config), train=False)
    backbone = module.build(replace(config, dtype="bfloat16"))
    coarse, stats, _ = run(backbone, train=False)
    params, _ = backbone.init(jax.random.key(0), (32, 32))
    assert {leaf.dtype for leaf in jax.tree.leaves((params, stats))} == {jnp.dtype("float32")}
    assert coarse.dtype == jnp.float32
    assert not np.array_equal(exact, coarse)
    assert float(jnp.abs(exact - coarse).max()) < 0.05 * float(jnp.abs(exact).max())
    _, new, _ = run(backbone, train=True)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(new))


@pytest.mark.usefixtures("x64")
def test_double_precision(small: tuple[Any, Any]) -> None:
    module, config = small
    backbone = module.build(config)
    params, stats = jax.tree.map(lambda a: a.astype(jnp.float64), backbone.init(jax.random.key(0), (32, 32)))
    x = np.random.default_rng(0).standard_normal((2, 32, 32, 3))
    features, new = jax.jit(lambda p, s, x: backbone.apply(p, s, x, train=True, key=None))(params, stats, x)
    assert features.dtype == jnp.float64
    assert {leaf.dtype for leaf in jax.tree.leaves(new)} <= {jnp.dtype("float64")}


@pytest.mark.parametrize("name", ["deit", pytest.param("mit", marks=pytest.mark.slow)])
def test_stochastic_depth(name: str) -> None:
    module, config = SMALL[name]
    backbone = module.build(config)
    quiet, _, _ = run(backbone, train=True)
    evaluated, _, _ = run(backbone, train=False, key=jax.random.key(0))
    dropped, _, _ = run(backbone, train=True, key=jax.random.key(0))
    np.testing.assert_allclose(quiet, evaluated, rtol=1e-5, atol=1e-5)
    assert not np.allclose(quiet, dropped)


def test_stochastic_depth_keeps_the_mean() -> None:
    x = jnp.ones((4000, 2, 3))
    kept = DropPath(0.25).apply({}, x, rngs={"drop_path": jax.random.key(0)})
    assert set(np.unique(np.asarray(kept))) == {np.float32(0), np.float32(4 / 3)}
    assert (np.asarray(kept) == np.asarray(kept)[:, :1, :1]).all()  # a whole sample at once
    np.testing.assert_allclose(np.mean(kept), 1, atol=0.02)


def test_pixels() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)
    ours = preprocess(Pixels(std=(0.299, 0.224, 0.225)))(jnp.asarray(images))
    expected = (images / 255.0 - [0.485, 0.456, 0.406]) / [0.299, 0.224, 0.225]
    assert ours.dtype == jnp.float32
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    blue_first = preprocess(CAFFE)(jnp.asarray(images))
    np.testing.assert_allclose(blue_first, images[..., ::-1].astype(np.float64) - [104, 117, 128], atol=1e-4)


def test_positions_follow_the_grid() -> None:
    """Bicubic as torch's antialiased interpolation; the tokens in front keep theirs."""
    torch = pytest.importorskip("torch")
    config = deit.Config(depth=1, width=8, heads=2, distilled=True)
    positions = np.random.default_rng(0).standard_normal((1, 2 + 14 * 14, 8)).astype(np.float32)
    for shape in ((256, 256), (224, 320), (112, 96)):
        new = deit.grid(config, shape)
        ours = deit._resize_positions(config, {"pos_embed": jnp.asarray(positions)}, shape)["pos_embed"]
        image = torch.from_numpy(positions[:, 2:].reshape(1, 14, 14, 8)).permute(0, 3, 1, 2)
        theirs = torch.nn.functional.interpolate(image, new, mode="bicubic", antialias=True, align_corners=False)
        np.testing.assert_array_equal(ours[:, :2], positions[:, :2])
        expected = theirs.permute(0, 2, 3, 1).reshape(1, -1, 8).numpy()
        np.testing.assert_allclose(ours[:, 2:], expected, atol=2e-5)


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (resnet, {"depths": (1, 2)}, r"backbone\.widths=.*as many entries as backbone\.depths"),
    (resnet, {"depths": (1, 0, 1, 1)}, r"backbone\.depths=.*positive"),
    (resnet, {"bn_momentum": 1.5}, r"backbone\.bn_momentum=1\.5"),
    (resnet, {"stage_bn_updates": 0}, r"backbone\.stage_bn_updates=0"),
    (resnet, {"dtype": "float16"}, r"backbone\.dtype='float16'.*bfloat16"),
    (resnet, {"pixels": {"std": (1.0, 0.0, 1.0)}}, r"backbone\.pixels\.std"),
    (bn_inception, {"bn_momentum": -0.1}, r"backbone\.bn_momentum=-0\.1"),
    (googlenet, {"bn_momentum": 2.0}, r"backbone\.bn_momentum=2\.0"),
    (deit, {"width": 100}, r"backbone\.width=100.*multiple of backbone\.heads=6"),
    (deit, {"drop_path": 1.0}, r"backbone\.drop_path=1\.0"),
    (mit, {"heads": (3, 2, 5, 8)}, r"backbone\.widths=.*multiples of backbone\.heads"),
    (mit, {"depths": (0, 1, 1, 1)}, r"backbone\.depths=.*positive"),
]


@pytest.mark.parametrize(("module", "values", "message"), BAD)
def test_wrong_configurations(module: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(module.Config, values, "backbone")


@pytest.mark.parametrize(
    ("module", "config", "side", "message"),
    [
        (bn_inception, bn_inception.Config(), 112, r"112x112 pixels.*multiple of 32, or 227"),
        (bn_inception, bn_inception.Config(), 16, r"16x16 pixels"),
        (deit, deit.Config(), 15, r"15x15 pixels: smaller than a patch; use at least 16x16"),
        (mit, mit.Config(), 28, r"28x28 pixels: stage 1 of MiT gets a map of 7x7"),
    ],
)
def test_wrong_image_sizes(module: Any, config: Any, side: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        module.build(config).init(jax.random.key(0), (side, side))
