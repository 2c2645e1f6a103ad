"""The exported function: equal outputs, any batch size, every architecture, without importing this package."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.backbones import bn_inception, deit, googlenet, mit, resnet
from dml_jax.export import programs
from tests import toys
from tests.contract.test_methods import every_method, method

SMALL = resnet.Config(block="basic", depths=(1, 1), widths=(4, 8), stem="small")
SHAPE = (16, 24)


def embedding_function(module: Any, config: Any, image_shape: tuple[int, int]) -> programs.Embed:
    backbone = module.build(config)
    params, stats = backbone.init(jax.random.key(0), image_shape)

    def embed(images: jax.Array) -> jax.Array:
        features, _ = backbone.apply(params, stats, backbone.preprocess(images), train=False)
        pooled = features.mean(axis=(1, 2))
        return pooled / jnp.linalg.norm(pooled, axis=1, keepdims=True)

    return embed


def test_equal_outputs_for_any_batch_size(tmp_path: Path) -> None:
    embed = embedding_function(resnet, SMALL, SHAPE)
    path = tmp_path / "deep" / "embed.stablehlo"
    programs.write_stablehlo(path, embed, SHAPE)
    assert programs.deviation_of(programs.read_stablehlo(path), embed, SHAPE) < 1e-6
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    other = embedding_function(resnet, resnet.Config(block="basic", depths=(1,), widths=(8,), stem="small"), SHAPE)
    assert programs.deviation_of(programs.read_stablehlo(path), other, SHAPE) > 1e-3
    broken = lambda images: embed(images).at[0, 0].set(jnp.nan)  # noqa: E731
    assert np.isnan(programs.deviation_of(broken, embed, SHAPE))


def test_without_this_package(tmp_path: Path) -> None:
    """In another process, which imports neither this package nor flax."""
    embed = embedding_function(resnet, SMALL, SHAPE)
    programs.write_stablehlo(tmp_path / "embed.stablehlo", embed, SHAPE)
    images = np.random.default_rng(0).integers(0, 256, (3, *SHAPE, 3), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    script = (
        "import json, sys, numpy as np, jax.export\n"
        "embed = jax.export.deserialize(open('embed.stablehlo', 'rb').read()).call\n"
        "print(json.dumps([np.asarray(embed(np.load('images.npy'))).tolist(),"
        " [m for m in sys.modules if m.split('.')[0] in ('dml_jax', 'flax')]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    embeddings, imported = json.loads(done.stdout)
    assert imported == []
    np.testing.assert_allclose(embeddings, embed(jnp.asarray(images)), atol=1e-6)


@pytest.mark.parametrize(
    ("module", "config"),
    [
        pytest.param(bn_inception, bn_inception.Config(), marks=pytest.mark.slow),
        pytest.param(googlenet, googlenet.Config(), marks=pytest.mark.slow),
        (deit, deit.Config(depth=1, width=32, heads=2, patch=8)),
        (mit, mit.Config(depths=(1, 1, 1, 1), widths=(4, 8, 8, 8), heads=(1, 2, 2, 2))),
        (resnet, resnet.Config(depths=(1, 1), widths=(4, 8), dtype="bfloat16")),
    ],
)
def test_every_architecture_exports_with_a_symbolic_batch(module: Any, config: Any) -> None:
    """Traced for all platforms, not run."""
    backbone = module.build(config)
    params, stats = jax.eval_shape(lambda: backbone.init(jax.random.key(0), (32, 32)))
    (batch,) = jax.export.symbolic_shape("b")
    images = jax.ShapeDtypeStruct((batch, 32, 32, 3), jnp.uint8)
    exported = jax.export.export(
        jax.jit(lambda p, s, x: backbone.apply(p, s, backbone.preprocess(x), train=False)[0]),
        platforms=programs.PLATFORMS,
    )(params, stats, images)
    assert str(exported.out_avals[0].shape[0]) == "b"


@every_method
def test_every_method_embeds_a_symbolic_batch(name: str) -> None:
    """Traced, not run."""
    made = method(name)
    example = toys.batch(made.hooks.views)
    variables = jax.eval_shape(made.init, jax.random.key(0), example)
    (batch,) = jax.export.symbolic_shape("b")
    images = jax.ShapeDtypeStruct((batch, *example.images.shape[2:]), jnp.uint8)
    assert str(jax.eval_shape(made.embed, *variables, images).shape[0]) == "b"


def test_a_failed_export_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"):
        programs.write_stablehlo(tmp_path / "x", lambda images: (_ for _ in ()).throw(ValueError("no")), SHAPE)
    assert list(tmp_path.iterdir()) == []
