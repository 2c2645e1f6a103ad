"""The command `dml-jax convert`: all one-line errors without output, authors' checkpoints."""

import hashlib
import http.server
import json
import re
import resource
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from dml_jax.backbones import bn_inception, deit, googlenet, mit, resnet
from dml_jax.backbones.weights import checks, store, tensor_files
from dml_jax.backbones.weights import convert as from_torch
from dml_jax.commands import cli, convert
from dml_jax.errors import WeightsError
from dml_jax.methods import diva, hist, mpn
from dml_jax.methods.contract import Batch, TrainingSet
from tests.backbones import state_dicts

TINY = resnet.Config(depths=(1, 1), widths=(4, 6))
CHANNELS = 24


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _supported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command converts the small networks of these tests as well."""
    networks = convert.published() | {"tiny": TINY, "tiny_deit": deit.Config(depth=1, width=64, heads=1)}
    monkeypatch.setattr(convert, "published", lambda: networks)


@pytest.fixture(scope="module")
def tiny() -> state_dicts.StateDict:
    """A small ResNet with a classifier, in torchvision's names."""
    head = {"fc.weight": np.ones((10, CHANNELS), np.float32), "fc.bias": np.zeros(10, np.float32)}
    return state_dicts.random_state_dict(resnet.build(TINY), "resnet") | head


def status(*arguments: str) -> int:
    return cli.exit_code(lambda: convert.execute(list(arguments)))


def error_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a conversion that must fail and leave nothing behind."""
    before = sorted(str(path) for path in Path().rglob("*"))
    assert status(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert sorted(str(path) for path in Path().rglob("*")) == before
    return printed.err


def check_tiny(directory: str, source: state_dicts.StateDict) -> None:
    """The converted directory contains the arrays of the source at the right paths."""
    params, stats = resnet.build(replace(TINY, pretrained=directory)).init(jax.random.key(0), (32, 32))
    for layer, name in (
        ("conv1", "conv1"),
        ("conv2", "layer2.0.conv2"),
        ("downsample_conv", "layer2.0.downsample.0"),
    ):
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
    assert status("--weights=w.safetensors", "--output=weights/tiny", "--skip_parity") == 0
    check_tiny("weights/tiny", source)
    info = json.loads(Path("weights/tiny/weights.json").read_text())
    assert info["source_sha256"] == {"w.safetensors": sha256_of("w.safetensors")}
    assert (info["layout"], info["kind"], info["architecture"]["depths"]) == (
        "torchvision",
        "backbone",
        [1, 1],
    )
    printed = capsys.readouterr().out
    assert sha256_of("w.safetensors") in printed
    assert "w.safetensors: tiny, names of torchvision, backbone" in printed
    assert f"{info['parameters']:,} parameters" in printed
    tensors, _ = store.read(Path("weights/tiny"))
    np.testing.assert_array_equal(tensors["classifier/fc/kernel"], source["fc.weight"].T)


def sha256_of(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_parity_report(tiny: state_dicts.StateDict, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    state_dicts.write(Path("w.safetensors"), tiny)
    assert status("--weights=w.safetensors", "--output=out") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "compared with torch" in line)
    assert line.split()[0] == "18"  # 9 convolutions, 9 batch norms
    assert float(line.split("deviation ")[1].split(",")[0]) < 1e-5


def test_parity_finds_a_wrong_layer(tiny: state_dicts.StateDict) -> None:
    pytest.importorskip("torch")
    converted = from_torch.convert({"w": tiny})
    arrays, name = tensor_files.finite(converted.tensors, "w.pth"), "layer1.0.conv1.weight"
    converted.state_dict[name] = 1.001 * tiny[name]
    with pytest.raises(WeightsError, match=r"1\.0e-03, in layer1\.0\.conv1; nothing was written"):
        checks.against_torch(converted, arrays, "w.pth")


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


def test_segformer_as_transformers_names_it() -> None:
    """The `state_dict` of `SegformerForImageClassification`, transformers 5; its names are written out here."""
    config = mit.Config(depths=(1, 1, 1, 1), widths=(8, 16, 40, 64))
    ours = state_dicts.random_state_dict(mit.build(config), "mit")
    theirs = {"classifier.weight": np.ones((10, 64), np.float32), "classifier.bias": np.zeros(10, np.float32)}
    parts = {"norm1": "layernorm_before", "norm2": "layernorm_after", "attn": "attention"}
    attention = {"q": "q_proj", "proj": "o_proj", "sr": "sequence_reduction.sequence_reduction",
                 "norm": "sequence_reduction.layer_norm"}  # fmt: skip
    for name, array in ours.items():
        module, _, leaf = name.rpartition(".")
        first, *rest = module.split(".")
        stage = f"segformer.stages.{int(first[-1]) - 1}"
        if first.startswith("patch_embed"):
            theirs[f"{stage}.patch_embeddings.{'proj' if rest == ['proj'] else 'layer_norm'}.{leaf}"] = array
        elif first.startswith("norm"):
            theirs[f"{stage}.layer_norm.{leaf}"] = array
        elif rest[1:] == ["attn", "kv"]:
            for key, half in zip(("k_proj", "v_proj"), np.split(array, 2), strict=True):
                theirs[f"{stage}.blocks.{rest[0]}.attention.{key}.{leaf}"] = half
        else:
            inner = attention[rest[2]] if rest[1] == "attn" else ".".join(rest[2:])
            layer = ".".join(filter(None, [parts.get(rest[1], rest[1]), inner]))
            theirs[f"{stage}.blocks.{rest[0]}.{layer}.{leaf}"] = array
    converted, expected = (from_torch.convert({"w": names}) for names in (theirs, ours))
    assert (converted.layout, converted.network.config) == ("Hugging Face", config)
    assert {path for path in converted.tensors if path.startswith("backbone/")} == set(expected.tensors)
    for path, tensor in expected.tensors.items():
        np.testing.assert_array_equal(converted.tensors[path], tensor, err_msg=path)


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


def test_complete_files_of_other_sizes_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deit_tiny = zeros("deit", deit.Config(depth=12, width=192, heads=3))
    monkeypatch.setattr(tensor_files, "read", lambda _: deit_tiny)
    line = error_line(capsys, "--weights=w.safetensors", "--output=out")
    assert line.startswith("error: w.safetensors: contains another network (name='deit', ")
    assert "), not one of bn_inception, deit_small" in line


@pytest.mark.parametrize("content", [None, 5, [], {}, {"architecture": 5}, {"architecture": {}, "weights_sha256": 1}])
def test_wrong_fields_of_weights_json(content: Any) -> None:
    store.write(Path("w"), {"x": np.ones(3, np.float32)}, {"architecture": {"name": "resnet"}})
    whole = json.loads(Path("w/weights.json").read_text())
    Path("w/weights.json").write_text(json.dumps(whole | content if isinstance(content, dict) and content else content))
    with pytest.raises(WeightsError, match=r"w/weights\.json: is truncated or damaged \(.*convert the weights again"):
        store.read(Path("w"))


def test_weights_that_do_not_fit_on_the_disk(tmp_path: Path) -> None:
    """Nothing is left behind."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            store.write(tmp_path / "w", {"x": np.ones(1000, np.float32)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_every_mismatch_is_named(tiny: state_dicts.StateDict, capsys: pytest.CaptureFixture[str]) -> None:
    broken = dict(tiny)
    broken["layer1.0.convolution2.weight"] = broken.pop("layer1.0.conv2.weight")
    broken["layer2.0.conv3.weight"] = broken["layer2.0.conv3.weight"].transpose(1, 0, 2, 3)
    del broken["layer2.0.bn1.running_mean"]
    broken["decoder.bias"] = np.zeros(3, np.float32)
    state_dicts.write(Path("w.safetensors"), broken)
    line = error_line(capsys, "--weights=w.safetensors", "--output=out")
    assert "missing: layer1.0.conv2.weight, layer2.0.bn1.running_mean;" in line
    assert "unexpected: decoder.bias, layer1.0.convolution2.weight;" in line
    assert "wrong shape: layer2.0.conv3.weight [6, 24, 1, 1] instead of [24, 6, 1, 1]" in line


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["layer1.0.bn2.bias", "layer2.0.bn3.running_var", "conv1.weight"])
def test_nan_and_infinity(
    value: float, name: str, tiny: state_dicts.StateDict, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {**tiny, name: tiny[name].copy()}
    broken[name].flat[-1] = value
    state_dicts.write(Path("w.safetensors"), broken)
    line = error_line(capsys, "--weights=w.safetensors", "--output=deep/out")
    path = {"conv1.weight": "conv1/kernel", "layer1.0.bn2.bias": "layer1_0/bn2/bias"}.get(name, "layer2_0/bn3/var")
    assert f"{path} contains NaN or infinity" in line


@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_truncated(share: float, tiny: state_dicts.StateDict, capsys: pytest.CaptureFixture[str]) -> None:
    path = state_dicts.write(Path("w"), tiny)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert "download it again" in error_line(capsys, "--weights=w", "--output=out")


def test_invalid_arguments(tiny: state_dicts.StateDict, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is missing; download it again" in error_line(capsys, "--weights=nowhere.pth")
    assert "--weights: missing" in error_line(capsys)
    assert "did you mean resnet50" in error_line(capsys, "--weights=w", "--backbone=resnet5")
    assert "did you mean --weights" in error_line(capsys, "--weight=w")
    assert "has no configuration" in error_line(capsys, "--weights=w", "--config.method.tau=3")
    state_dicts.write(Path("w.safetensors"), tiny)
    assert "contains tiny" in error_line(capsys, "--weights=w.safetensors", "--backbone=resnet50")
    state_dicts.write(Path("other.safetensors"), {"encoder.0.weight": np.zeros((2, 2), np.float32)})
    assert "none of the known networks" in error_line(capsys, "--weights=other.safetensors")
    Path("there").mkdir()
    assert "already exists" in error_line(capsys, "--weights=w.safetensors", "--output=there")
    assert "a parent of this path is a file" in error_line(capsys, "--weights=nowhere.pth", "--output=w.safetensors/y")
    assert "one file with a backbone" in error_line(capsys, "--weights=w.safetensors,other.safetensors")


# Downloads, without a network.


def test_hub_client_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "huggingface_hub is not installed: pip install huggingface_hub" in error_line(
        capsys, "--weights=hf://timm/resnet50.tv_in1k"
    )


@pytest.fixture
def served() -> Iterator[tuple[str, dict[str, bytes], dict[str, int | None]]]:
    """A server: its address, contents by path, and announced lengths by path, if not the true ones; None for none."""
    contents: dict[str, bytes] = {}
    announced: dict[str, int | None] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in contents else 404)
            content = contents.get(self.path, b"")
            if (length := announced.get(self.path, len(content))) is not None:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("localhost", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}", contents, announced
        server.shutdown()
        thread.join()


def test_downloads_are_cached_by_their_whole_address(served: Any) -> None:
    address, contents, _ = served
    cache = Path("cache")
    names = ("/a/model.pth", "/b/model.pth", "/a/model.pth?v=2", "/..")
    contents |= {path: safetensors.numpy.save({path: np.zeros(3)}) for path in names}
    found = {path: tensor_files.fetch(address + path, cache) for path in contents}
    assert {path: file.read_bytes() for path, file in found.items()} == contents
    assert [file.name for file in found.values()] == ["model.pth"] * 3 + ["weights"]
    expected = dict(contents)
    contents.clear()  # from now on, files come from the cache
    assert {path: tensor_files.fetch(address + path, cache).read_bytes() for path in expected} == expected
    found["/a/model.pth"].write_bytes(b"damaged")
    with pytest.raises(WeightsError, match="404"):
        tensor_files.fetch(f"{address}/a/model.pth", cache)
    contents |= expected
    assert tensor_files.fetch(f"{address}/a/model.pth", cache).read_bytes() == expected["/a/model.pth"]


def test_incomplete_and_wrong_downloads_are_not_kept(served: Any) -> None:
    address, contents, announced = served
    cache = Path("cache")
    weights = safetensors.numpy.save({"x": np.zeros(3000, np.float32)})
    digest = hashlib.sha256(b"right").hexdigest()
    contents |= {"/cut.pth": bytes(10), f"/net-{digest[:8]}.pth": b"wrong"}
    announced["/cut.pth"] = 10_000
    for path, message in (
        ("/cut.pth", r"ended after 10 of 10000 bytes"),
        (f"/net-{digest[:8]}.pth", rf"its SHA-256 is {hashlib.sha256(b'wrong').hexdigest()} instead of {digest[:8]}"),
    ):
        for _ in range(2):
            with pytest.raises(WeightsError, match=rf"{path}: cannot be downloaded \({message}\); try again"):
                tensor_files.fetch(address + path, cache)
        assert not [file for file in cache.rglob("*") if file.is_file()]
    announced.clear()
    contents |= {"/cut.pth": weights, f"/net-{digest[:8]}.pth": b"right"}
    for path, content in contents.items():
        assert tensor_files.fetch(address + path, cache).read_bytes() == content


@pytest.mark.parametrize("kind", ["part", "message"])
def test_an_answer_without_weights_is_not_kept(
    kind: str, served: Any, tiny: state_dicts.StateDict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Without a digest and a length, nothing else shows that it is not the file."""
    address, contents, announced = served
    weights = state_dicts.write(tmp_path / "w.pth", tiny).read_bytes()
    wrong = {"part": weights[: len(weights) // 2], "message": b'{"error": "quota"}'}
    contents["/w.pth"], announced["/w.pth"] = wrong[kind], None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache = tmp_path / "cache" / "dml_jax" / "weights"
    (cache / hashlib.sha256(f"{address}/w.pth".encode()).hexdigest()[:32]).mkdir(parents=True)
    line = error_line(capsys, f"--weights={address}/w.pth", "--output=out", "--skip_parity")
    assert line.startswith(f"error: {address}/w.pth: ")
    assert not [path for path in cache.rglob("*") if path.is_file()]
    contents["/w.pth"] = weights
    assert status(f"--weights={address}/w.pth", "--output=out", "--skip_parity") == 0


@pytest.mark.parametrize(("server", "why"), [("127.0.0.1:9", "Connection refused"), ("hub.invalid", ".*[Nn]ame.*")])
def test_unreachable_url(server: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://{server}/googlenet-1378be20.pth"
    wanted = (
        rf"error: {url}: cannot be downloaded \({why}\); try again, or download it on a machine with network access "
    )
    assert re.match(wanted, error_line(capsys, f"--weights={url}", "--output=out"))


# Training from converted weights.


def test_missing_weights_name_the_convert_command() -> None:
    backbone = resnet.build(replace(resnet.resnet50(), pretrained="weights/resnet50"))
    wanted = r"dml-jax convert --weights=hf://timm/resnet50\.tv_in1k --output=weights/resnet50"
    with pytest.raises(WeightsError, match=wanted) as caught:
        backbone.init(jax.random.key(0), (224, 224))
    assert "--config.backbone.pretrained=none" in str(caught.value)
    for module, config in (
        (mit, mit.mit_b2()),
        (deit, deit.deit_small()),
        (bn_inception, bn_inception.Config()),
    ):
        with pytest.raises(WeightsError, match=r"dml-jax convert --weights=(hf|http)"):
            module.build(replace(config, pretrained="nowhere")).init(jax.random.key(0), (224, 224))


def test_fixed_scales_are_loaded_into_stats(tiny: state_dicts.StateDict) -> None:
    state_dicts.write(Path("w.safetensors"), tiny)
    assert status("--weights=w.safetensors", "--output=out", "--skip_parity") == 0
    backbone = resnet.build(replace(TINY, pretrained="out", freeze_bn_affine=True))
    params, stats = backbone.init(jax.random.key(0), (32, 32))
    np.testing.assert_array_equal(stats["layer1_0"]["bn2"]["scale"], tiny["layer1.0.bn2.weight"])
    assert "bn2" not in params["layer1_0"]


def test_weights_of_another_network_are_rejected(tiny: state_dicts.StateDict) -> None:
    state_dicts.write(Path("w.safetensors"), tiny)
    assert status("--weights=w.safetensors", "--output=out", "--skip_parity") == 0
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
        (
            "w.pth",
            "vit_base",
            "error: w.pth: contains deit_small or vit_small or dino_vits16 (name='deit', ",
        ),
    ],
)
def test_networks_with_the_same_tensors(
    source: str, option: str, found: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file's name tells for which pixels they were trained, or --backbone does."""
    monkeypatch.setattr(tensor_files, "read", lambda _: dict(zeros("deit", deit.deit_small())))
    monkeypatch.setattr(tensor_files, "finite", lambda *_: {"backbone/params/x": np.zeros(1, np.float32)})
    Path(source).parent.mkdir(exist_ok=True)
    Path(source).touch()
    code = status(f"--weights={source}", *([f"--backbone={option}"] if option else []), "--skip_parity")
    printed = capsys.readouterr()
    if code:
        assert printed.err.startswith(found)
        return
    assert f"{source}: {found}, names of timm" in printed.out
    assert (f"if these are not of {found}, name them with --backbone" in printed.out) == (not option)
    recorded = json.loads(Path(f"weights/{found}/weights.json").read_text())["architecture"]
    named = asdict(convert.published()[found])
    assert recorded["pixels"] == json.loads(json.dumps(named["pixels"]))
    assert (recorded["name"], recorded["interpolation"]) == (named["name"], "antialiased")  # as timm does


def test_position_embeddings_are_resized() -> None:
    """DeiT's weights can be used with any image size."""
    config = deit.Config(depth=1, width=64, heads=1)
    state_dicts.write(Path("w.safetensors"), state_dicts.random_state_dict(deit.build(config), "deit", side=64))
    assert status("--weights=w.safetensors", "--output=out", "--skip_parity") == 0
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
    assert status(f"--weights={','.join(map(str, files))}", "--output=out", "--skip_parity") == 0
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


def test_checkpoints_of_mpn(tiny: state_dicts.StateDict, capsys: pytest.CaptureFixture[str]) -> None:
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
    capsys.readouterr()
    shifted = {**network, "bottleneck.0.bias": np.ones(8, np.float32)}
    state_dicts.write(files[1], shifted)
    assert "bottleneck.0.bias is not zero" in error_line(capsys, f"--weights={files[0]},{files[1]}", "--output=out2")
    del network["gnn_model.node_model.layers.1.att.out.bias"]
    state_dicts.write(files[1], network)
    line = error_line(capsys, f"--weights={files[0]},{files[1]}", "--output=out2")
    assert "gnn.safetensors" in line
    assert "missing: layer2.output.bias" in line


def test_checkpoint_of_another_method_is_rejected(tiny: state_dicts.StateDict) -> None:
    encoder = {k: v for k, v in tiny.items() if not k.startswith("fc.")}
    encoder |= linear(np.random.default_rng(0), "red", 8, CHANNELS) | linear(np.random.default_rng(0), "fc", 5, 8)
    file = state_dicts.write(Path("w.safetensors"), encoder)
    with pytest.raises(
        WeightsError,
        match=r"auxiliary/kernel; wrong shape: .*embedding/kernel \[24, 8\] instead of \[24, 16\]",
    ):
        load_checkpoint(hist.build(hist.Config(embedding_dim=16), resnet.build(TINY), TrainingSet(5, 5)), file)


def test_recorded_architecture(tiny: state_dicts.StateDict) -> None:
    """`weights.json` contains the configuration of the network."""
    state_dicts.write(Path("w.safetensors"), tiny)
    assert status("--weights=w.safetensors", "--output=out", "--skip_parity") == 0
    recorded = json.loads(Path("out/weights.json").read_text())["architecture"]
    made = {k: tuple(v) if isinstance(v, list) else v for k, v in recorded.items() if k != "pixels"}
    assert {**asdict(TINY), **made} == asdict(TINY)
