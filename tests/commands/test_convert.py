"""The command `dml-jax convert`: all one-line errors without output, authors' checkpoints."""

import hashlib
import json
import sys
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.backbones import bn_inception, deit, googlenet, mit, resnet
from dml_jax.backbones.weights import convert as from_torch
from dml_jax.backbones.weights import store, tensor_files
from dml_jax.commands import cli, convert
from dml_jax.errors import WeightsError
from dml_jax.methods import diva, hist, mpn
from dml_jax.methods.contract import Batch, TrainingSet
from tests.backbones import state_dicts
from tests.commands.conftest import Fails

TINY = resnet.Config(depths=(1, 1), widths=(4, 6))
CHANNELS = 24


@pytest.fixture(autouse=True)
def _supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, here in an empty directory, converts the small networks of these tests as well."""
    monkeypatch.chdir(tmp_path)
    networks = convert.published() | {"tiny": TINY, "tiny_deit": deit.Config(depth=1, width=64, heads=1)}
    monkeypatch.setattr(convert, "published", lambda: networks)


@pytest.fixture(scope="module")
def tiny() -> state_dicts.StateDict:
    """A small ResNet with a classifier, in torchvision's names."""
    head = {"fc.weight": np.ones((10, CHANNELS), np.float32), "fc.bias": np.zeros(10, np.float32)}
    return state_dicts.random_state_dict(resnet.build(TINY), "resnet") | head


def status(*arguments: str) -> int:
    return cli.exit_code(lambda: convert.execute(list(arguments)))


def check_tiny(directory: str, source: state_dicts.StateDict) -> None:
    """The converted directory contains the arrays of the source at the right paths."""
    params, stats = resnet.build(replace(TINY, pretrained=directory)).init(jax.random.key(0), (32, 32))
    for layer, name in (("conv1", "conv1"), ("conv2", "layer2.0.conv2"), ("downsample_conv", "layer2.0.downsample.0")):
        branch = params if layer == "conv1" else params["layer2_0"]
        np.testing.assert_array_equal(branch[layer]["kernel"], source[f"{name}.weight"].transpose(2, 3, 1, 0))
    np.testing.assert_array_equal(params["layer1_0"]["bn3"]["scale"], source["layer1.0.bn3.weight"])
    np.testing.assert_array_equal(
        stats["layer2_0"]["downsample_bn"]["var"], source["layer2.0.downsample.1.running_var"]
    )
    assert isinstance(params["conv1"]["kernel"], jax.Array)


@pytest.mark.parametrize("kind", ["whole", "half", "parallel"])
def test_torchvision(kind: str, tiny: state_dicts.StateDict, capsys: pytest.CaptureFixture[str]) -> None:
    source = tiny
    if kind == "half":
        source = {k: v.astype(np.float16) if v.dtype == np.float32 else v for k, v in tiny.items()}
    named = {f"module.{k}": v for k, v in source.items()} if kind == "parallel" else source
    state_dicts.write(Path("w.safetensors"), named)
    assert status("--weights=w.safetensors", "--output=weights/tiny") == 0
    check_tiny("weights/tiny", source)
    info = json.loads(Path("weights/tiny/weights.json").read_text())
    assert info["source_sha256"] == {"w.safetensors": sha256_of("w.safetensors")}
    assert (info["layout"], info["kind"], info["architecture"]["depths"]) == ("torchvision", "backbone", [1, 1])
    printed = capsys.readouterr().out
    assert sha256_of("w.safetensors") in printed
    assert "w.safetensors: tiny, names of torchvision, backbone" in printed
    assert f"{info['parameters']:,} parameters" in printed
    tensors, _ = store.read(Path("weights/tiny"))
    np.testing.assert_array_equal(tensors["classifier/fc/kernel"], source["fc.weight"].T)


def sha256_of(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


OTHER_LAYOUTS: list[tuple[str, Any, str]] = [
    ("bn_inception", bn_inception.Config(), "Cadene"),
    ("googlenet", googlenet.Config(), "torchvision"),
    ("deit", deit.Config(depth=2, width=128, heads=2, distilled=True), "timm"),
    ("mit", mit.Config(depths=(1, 2, 1, 1), widths=(8, 16, 40, 64)), "SegFormer"),
    ("resnet", resnet.Config(block="basic", depths=(1, 2, 1), widths=(4, 8, 8), stem="small"), "torchvision"),
]


@pytest.mark.parametrize(("architecture", "config", "layout"), OTHER_LAYOUTS)
def test_recognises_every_layout(architecture: str, config: Any, layout: str) -> None:
    """The configuration is derived from the tensors, and every tensor is converted."""
    module = sys.modules[f"dml_jax.backbones.{architecture}"]
    source = state_dicts.random_state_dict(module.build(config), architecture)
    if architecture == "googlenet":
        source |= {"aux1.conv.conv.weight": np.zeros((1, 1, 1, 1)), "aux2.fc1.bias": np.zeros(2)}
    if architecture == "bn_inception":
        source = {k: v[None] if "_bn." in k and v.ndim else v for k, v in source.items()}
    converted = from_torch.convert({"w": source})
    assert converted.layout == layout
    assert converted.network.config == config
    assert sum(array.size for array in converted.tensors.values()) == sum(
        v.size for k, v in source.items() if "num_batches" not in k and "aux" not in k
    )


# Errors.


@cache
def zeros(architecture: str, config: Any) -> state_dicts.StateDict:
    """The tensors of a complete file, all zero, in the memory of one number."""
    module = sys.modules[f"dml_jax.backbones.{architecture}"]
    leaves = jax.tree_util.tree_leaves_with_path(
        jax.eval_shape(lambda: module.build(config).init(jax.random.key(0), (224, 224)))
    )
    found = {}
    for path, leaf in leaves:
        keys = tuple(key.key for key in path[1:])
        shape = from_torch.torch_shape(keys, leaf.shape)
        found[from_torch.torch_name(architecture, keys)] = np.broadcast_to(np.float32(0), shape)
    return found


def test_complete_files_of_other_sizes_are_refused(monkeypatch: pytest.MonkeyPatch, fails: Fails) -> None:
    other = zeros("deit", deit.Config(depth=2, width=64, heads=1))
    monkeypatch.setattr(tensor_files, "read", lambda _: other)
    line = fails(convert, "--weights=w.safetensors", "--output=out")
    assert line.startswith("w.safetensors: contains another network (name='deit', ")
    assert "), not one of bn_inception, deit_small" in line


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"architecture": 5},
        {"image_shape": ["224", "224"]},
        {"image_shape": [0, 9]},
        {"image_shape": [224.0, 224]},
        {"crop_fraction": "0.875"},
        {"crop_fraction": 0},
        {"crop_fraction": True},
        {"weights_sha256": None},
    ],
)
def test_wrong_fields_of_weights_json(content: Any) -> None:
    store.write(Path("w"), {"x": np.ones(3, np.float32)}, {"architecture": {"name": "resnet"}})
    whole = json.loads(Path("w/weights.json").read_text())
    Path("w/weights.json").write_text(json.dumps(whole | content if isinstance(content, dict) and content else content))
    with pytest.raises(WeightsError, match=r"w/weights\.json: is truncated or damaged \(.*convert the weights again"):
        store.read(Path("w"))


def test_every_mismatch_is_named(tiny: state_dicts.StateDict, fails: Fails) -> None:
    broken = dict(tiny)
    broken["layer1.0.convolution2.weight"] = broken.pop("layer1.0.conv2.weight")
    broken["layer2.0.conv3.weight"] = broken["layer2.0.conv3.weight"].transpose(1, 0, 2, 3)
    del broken["layer2.0.bn1.running_mean"]
    broken["decoder.bias"] = np.zeros(3, np.float32)
    state_dicts.write(Path("w.safetensors"), broken)
    line = fails(convert, "--weights=w.safetensors", "--output=out")
    assert "missing: layer1.0.conv2.weight, layer2.0.bn1.running_mean;" in line
    assert "unexpected: decoder.bias, layer1.0.convolution2.weight;" in line
    assert "wrong shape: layer2.0.conv3.weight [6, 24, 1, 1] instead of [24, 6, 1, 1]" in line


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity(value: float, tiny: state_dicts.StateDict, fails: Fails) -> None:
    broken = {**tiny, "layer1.0.bn2.bias": tiny["layer1.0.bn2.bias"].copy()}
    broken["layer1.0.bn2.bias"].flat[-1] = value
    state_dicts.write(Path("w.safetensors"), broken)
    line = fails(convert, "--weights=w.safetensors", "--output=deep/out")
    assert "layer1_0/bn2/bias contains NaN or infinity" in line


def test_truncated(tiny: state_dicts.StateDict, fails: Fails) -> None:
    path = state_dicts.write(Path("w"), tiny)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.5)])
    assert "download it again" in fails(convert, "--weights=w", "--output=out")


def test_invalid_arguments(tiny: state_dicts.StateDict, fails: Fails) -> None:
    assert "is missing; download it again" in fails(convert, "--weights=nowhere.pth")
    assert "arguments are required: --weights" in fails(convert)
    assert "did you mean resnet50" in fails(convert, "--weights=w", "--backbone=resnet5")
    assert "did you mean --output" in fails(convert, "--weights=w", "--outputs=x")
    assert "--weight=w: there is no such option; did you mean --weights" in fails(convert, "--weight=w")
    assert "has no configuration" in fails(convert, "--weights=w", "--config.method.tau=3")
    state_dicts.write(Path("w.safetensors"), tiny)
    assert "contains tiny" in fails(convert, "--weights=w.safetensors", "--backbone=resnet50")
    state_dicts.write(Path("other.safetensors"), {"encoder.0.weight": np.zeros((2, 2), np.float32)})
    assert "none of the known networks" in fails(convert, "--weights=other.safetensors")
    Path("there").mkdir()
    assert "already exists" in fails(convert, "--weights=w.safetensors", "--output=there")
    assert "a parent of this path is a file" in fails(convert, "--weights=nowhere.pth", "--output=w.safetensors/y")
    assert "one file with a backbone" in fails(convert, "--weights=w.safetensors,other.safetensors")


# Training from converted weights.


def test_weights_of_another_network_are_rejected(tiny: state_dicts.StateDict) -> None:
    state_dicts.write(Path("w.safetensors"), tiny)
    assert status("--weights=w.safetensors", "--output=out") == 0
    wider = replace(TINY, widths=(4, 8), pretrained="out")
    with pytest.raises(WeightsError, match=r"are weights of backbone\.widths=\[4, 6\] instead of \[4, 8\]; set"):
        resnet.build(wider).init(jax.random.key(0), (32, 32))
    with pytest.raises(WeightsError, match=r"are weights of backbone\.name=resnet instead of deit"):
        deit.build(deit.Config(pretrained="out")).init(jax.random.key(0), (32, 32))
    numbers = Path("out/weights.safetensors")
    damaged = bytearray(numbers.read_bytes())
    damaged[-1] ^= 1
    numbers.write_bytes(damaged)
    with pytest.raises(WeightsError, match="SHA-256"):
        resnet.build(replace(TINY, pretrained="out")).init(jax.random.key(0), (32, 32))
    Path("out/weights.json").unlink()
    with pytest.raises(WeightsError, match=r"weights\.json: is missing; give a directory of converted weights, or"):
        resnet.build(replace(TINY, pretrained="out")).init(jax.random.key(0), (32, 32))


@pytest.mark.parametrize(
    ("source", "option", "found"),
    [
        ("w.pth", "", "deit_small"),
        ("timm/vit_small_patch16_224.augreg_in21k.safetensors", "", "vit_small"),
        ("dino_deitsmall16_pretrain.pth", "", "dino_vits16"),
        ("w.pth", "vit_small", "vit_small"),
        ("dino.pth", "deit_small", "deit_small"),
        ("w.pth", "vit_base", "error: w.pth: contains deit_small or vit_small or dino_vits16 (name='deit', "),
    ],
)
def test_networks_with_the_same_tensors(
    source: str, option: str, found: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file's name tells for which pixels they were trained, or --backbone does."""
    monkeypatch.setattr(tensor_files, "read", lambda _: dict(zeros("deit", deit.Config())))
    monkeypatch.setattr(tensor_files, "finite", lambda *_: {"backbone/params/x": np.zeros(1, np.float32)})
    Path(source).parent.mkdir(exist_ok=True)
    Path(source).touch()
    code = status(f"--weights={source}", *([f"--backbone={option}"] if option else []))
    printed = capsys.readouterr()
    if code:
        assert printed.err.startswith(found)
        return
    assert f"{source}: {found}, names of timm" in printed.out
    assert (f"if these are not of {found}, give --backbone" in printed.out) == (not option)
    recorded = json.loads(Path(f"weights/{found}/weights.json").read_text())["architecture"]
    named = asdict(convert.published()[found])
    assert recorded["pixels"] == json.loads(json.dumps(named["pixels"]))
    assert (recorded["name"], recorded["interpolation"]) == (named["name"], "antialiased")  # as timm does


def test_position_embeddings_are_resized() -> None:
    """DeiT's weights can be used with any image size."""
    config = deit.Config(depth=1, width=64, heads=1)
    state_dicts.write(Path("w.safetensors"), state_dicts.random_state_dict(deit.build(config), "deit", side=64))
    assert status("--weights=w.safetensors", "--output=out") == 0
    backbone = deit.build(replace(config, pretrained="out"))
    assert backbone.init(jax.random.key(0), (64, 64))[0]["pos_embed"].shape == (1, 17, 64)
    assert backbone.init(jax.random.key(0), (96, 48))[0]["pos_embed"].shape == (1, 19, 64)


# Authors' checkpoints, loaded into the methods: a small backbone with the authors' names.

BATCH = Batch(jnp.zeros((2, 4, 32, 32, 3), jnp.uint8), jnp.array([0, 0, 1, 1]), jnp.arange(4))


def linear(rng: np.random.Generator, name: str, outputs: int, inputs: int) -> state_dicts.StateDict:
    return {
        f"{name}.weight": rng.standard_normal((outputs, inputs)).astype(np.float32),
        f"{name}.bias": rng.standard_normal(outputs).astype(np.float32),
    }


def load_checkpoint(method: Any, *files: Path) -> tuple[Any, Any, list[str]]:
    assert status(f"--weights={','.join(map(str, files))}", "--output=out") == 0
    return store.load_method("out", *method.init(jax.random.key(0), BATCH))


def test_checkpoint_of_hist(tiny: state_dicts.StateDict) -> None:
    """Embeddings equal average + max pooling, linear layer and layer norm, computed in NumPy from the checkpoint."""
    theirs = {f"model.{k}": v for k, v in (tiny | linear(np.random.default_rng(0), "embedding", 8, CHANNELS)).items()}
    file = state_dicts.write(Path("cars_resnet50_best.safetensors"), theirs)
    backbone = resnet.build(TINY)
    method = hist.build(hist.Config(embedding_dim=8, hidden_dim=8), backbone, TrainingSet(5, 5))
    params, state, kept = load_checkpoint(method, file)
    check_tiny("out", tiny)
    assert {name.split("/")[1] for name in kept if name.startswith("params")} == {"distributions", "hgnn"}
    images = np.random.default_rng(1).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    inputs = backbone.preprocess(images)
    forward = jax.jit(lambda p, s, x: backbone.apply(p, s, x, train=False)[0])
    features = forward(params["backbone"], state["backbone"], inputs)
    pooled = np.asarray(features, np.float64).mean((1, 2)) + np.asarray(features, np.float64).max((1, 2))
    x = pooled @ theirs["model.embedding.weight"].T + theirs["model.embedding.bias"]
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(jax.jit(method.embed)(params, state, images), x, atol=1e-4)


def test_checkpoint_of_diva(tiny: state_dicts.StateDict) -> None:
    """Blocks stored twice, one layer per task."""
    rng = np.random.default_rng(0)
    tasks = ("discriminative", "selfsimilarity", "shared", "intra")
    heads = {k: v for task in tasks for k, v in linear(rng, f"model.last_linear.{task}", 8, CHANNELS).items()}
    body = {f"model.{k}": v for k, v in tiny.items() if not k.startswith("fc.")}
    twice = {f"layer_blocks.{int(k[5]) - 1}.{k.split('.', 1)[1]}": v for k, v in tiny.items() if k.startswith("layer")}
    method = diva.build(diva.Config(embedding_dim=8), resnet.build(TINY), TrainingSet(5, 5))
    params, _, kept = load_checkpoint(method, state_dicts.write(Path("w.safetensors"), body | twice | heads))
    for task in tasks:
        np.testing.assert_array_equal(params["heads"][task]["kernel"], heads[f"model.last_linear.{task}.weight"].T)
    assert not [name for name in kept if name.startswith(("params/backbone", "params/heads", "state/backbone"))]


def gnn(rng: np.random.Generator, d: int, classes: int, layers: int) -> state_dicts.StateDict:
    """The message passing network of MPN in the authors' names."""
    found = linear(rng, "dim_red", d, d)
    for i in range(layers):
        name = f"gnn_model.node_model.layers.{i}"
        for part in ("q_linear", "v_linear", "k_linear", "out"):
            found |= linear(rng, f"{name}.att.{part}", d, d)
        found |= linear(rng, f"{name}.linear1", 4 * d, d) | linear(rng, f"{name}.linear2", d, 4 * d)
        for norm in ("norm1", "norm2"):
            found |= {
                f"{name}.{norm}.weight": rng.random(d, np.float32),
                f"{name}.{norm}.bias": rng.random(d, np.float32),
            }
    vector = lambda: rng.random(d, np.float32)  # noqa: E731
    found |= {"bottleneck.0.weight": vector(), "bottleneck.0.bias": np.zeros(d, np.float32)}
    found |= {"bottleneck.0.running_mean": vector(), "bottleneck.0.running_var": vector()}
    found["bottleneck.0.num_batches_tracked"] = np.array(5, np.int64)
    return found | {"fc.0.weight": rng.standard_normal((classes, d)).astype(np.float32)}


def test_checkpoints_of_mpn(tiny: state_dicts.StateDict, fails: Fails) -> None:
    rng = np.random.default_rng(0)
    body = {k: v for k, v in tiny.items() if not k.startswith("fc.")}
    encoder = body | linear(rng, "red", 8, CHANNELS) | linear(rng, "fc", 5, 8)
    network = gnn(rng, 8, 5, layers=2)
    files = [
        state_dicts.write(Path("0.7029resnet50_cub.safetensors"), encoder),
        state_dicts.write(Path("gnn.safetensors"), network),
    ]
    config = mpn.Config(embedding_dim=8, layers=2, heads=2)
    method = mpn.build(config, resnet.build(TINY), TrainingSet(5, 5))
    params, state, kept = load_checkpoint(method, *files)
    assert kept == []
    np.testing.assert_array_equal(params["embedding"]["kernel"], encoder["red.weight"].T)
    np.testing.assert_array_equal(params["auxiliary"]["bias"], encoder["fc.bias"])
    np.testing.assert_array_equal(params["mpn"]["projection"]["kernel"], network["dim_red.weight"].T)
    for i in (1, 2):
        name, layer = f"gnn_model.node_model.layers.{i - 1}", params["mpn"][f"layer{i}"]
        keys, values = np.split(np.asarray(layer["key_value"]["kernel"]), 2, axis=1)
        np.testing.assert_array_equal(keys, network[f"{name}.att.k_linear.weight"].T)
        np.testing.assert_array_equal(values, network[f"{name}.att.v_linear.weight"].T)
        np.testing.assert_array_equal(layer["ff1"]["kernel"], network[f"{name}.linear1.weight"].T)
        np.testing.assert_array_equal(layer["norm2"]["scale"], network[f"{name}.norm2.weight"])
    np.testing.assert_array_equal(params["mpn"]["classifier"]["kernel"], network["fc.0.weight"].T)
    np.testing.assert_array_equal(state["neck"]["var"], network["bottleneck.0.running_var"])
    shifted = {**network, "bottleneck.0.bias": np.ones(8, np.float32)}
    state_dicts.write(files[1], shifted)
    assert "bottleneck.0.bias is not zero" in fails(convert, f"--weights={files[0]},{files[1]}", "--output=out2")


def test_checkpoint_of_another_method_is_rejected(tiny: state_dicts.StateDict) -> None:
    encoder = {k: v for k, v in tiny.items() if not k.startswith("fc.")}
    encoder |= linear(np.random.default_rng(0), "red", 8, CHANNELS) | linear(np.random.default_rng(0), "fc", 5, 8)
    file = state_dicts.write(Path("w.safetensors"), encoder)
    with pytest.raises(
        WeightsError, match=r"auxiliary/kernel; wrong shape: .*embedding/kernel \[24, 8\] instead of \[24, 16\]"
    ):
        load_checkpoint(hist.build(hist.Config(embedding_dim=16), resnet.build(TINY), TrainingSet(5, 5)), file)
