"""The command `dml-jax convert`: libraries' and authors' layouts, and one-line errors without output."""

import hashlib
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from dml_jax.backbones import bn_inception, deit, googlenet, mit, resnet
from dml_jax.backbones.weights import convert as from_torch
from dml_jax.backbones.weights import converted, known_networks, tensor_files
from dml_jax.errors import WeightsError
from dml_jax.train import model as models
from tests.backbones import state_dicts
from tests.commands.converted import CHANNELS, check_tiny, linear, status, zeros

pytestmark = pytest.mark.usefixtures("small_networks")


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
    tensors, _ = converted.read(Path("weights/tiny"))
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


def test_checkpoints_of_a_method(tiny: state_dicts.StateDict) -> None:
    """Heads by the names of its authors, one under the name of a classifier, and a network in a file of its own."""
    rng = np.random.default_rng(0)
    renamed = lambda tensors, source: {f"method/params/{source}/{k}": v for k, v in tensors.items()}  # noqa: E731
    heads = (from_torch.Head(r"task(\d)", r"method/params/heads/\1"), from_torch.Head("fc", "method/params/b", False))
    layout = from_torch.Checkpoint("X", heads, ("copy.",), from_torch.SecondNetwork("decoder", "d.weight", renamed))
    body = {k: v for k, v in tiny.items() if not k.startswith("fc.")} | {"copy.x": np.ones(2, np.float32)}
    theirs = body | linear(rng, "task3", 5, CHANNELS) | linear(rng, "fc", 7, 5)
    converted = from_torch.convert({"w": theirs}, [layout])
    assert converted.kind == "X"
    np.testing.assert_array_equal(converted.tensors["method/params/heads/3/kernel"], theirs["task3.weight"].T)
    np.testing.assert_array_equal(converted.tensors["method/params/b/kernel"], theirs["fc.weight"].T)
    assert not [path for path in converted.tensors if path.startswith("classifier/")]
    both = from_torch.convert({"w": theirs, "n": {"d.weight": np.ones(3, np.float32)}}, [layout])
    assert (both.kind, both.tensors.keys() - converted.tensors.keys()) == (
        "X, with its decoder", {"method/params/n/d.weight"}
    )  # fmt: skip
    plain = from_torch.convert({"w": tiny}, [layout])
    assert plain.kind == "backbone"
    np.testing.assert_array_equal(plain.tensors["classifier/fc/kernel"], tiny["fc.weight"].T)
    with pytest.raises(WeightsError, match=r"unexpected: copy\.x, task3\.weight, task3\.bias, fc\.weight"):
        from_torch.convert({"w": theirs})


@pytest.mark.parametrize(
    ("source", "option", "found"),
    [
        ("w.pth", "", "deit_small"),
        ("timm/vit_small_patch16_224.augreg_in21k.safetensors", "", "vit_small"),
        ("dino_deitsmall16_pretrain.pth", "", "dino_vits16"),
        ("w.pth", "vit_small", "vit_small"),
        ("dino.pth", "deit_small", "deit_small"),
    ],
)
def test_networks_with_the_same_tensors(
    source: str, option: str, found: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file's name tells for which pixels they were trained, or --backbone does."""
    monkeypatch.setattr(tensor_files, "read", lambda _: dict(zeros("deit", deit.Config())))
    monkeypatch.setattr(tensor_files, "finite", lambda *_: {"backbone/params/x": np.zeros(1, np.float32)})
    monkeypatch.setattr(models, "identify", None)
    Path(source).parent.mkdir(exist_ok=True)
    Path(source).touch()
    assert status(f"--weights={source}", *([f"--backbone={option}"] if option else [])) == 0
    printed = capsys.readouterr()
    assert f"{source}: {found}, names of timm" in printed.out
    assert (f"if the weights are not {found}, give --backbone" in printed.out) == (not option)
    recorded = json.loads(Path(f"weights/{found}/weights.json").read_text())["architecture"]
    named = asdict(known_networks.published()[found])
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
