"""Compiling for devices that are not there: without the wheels, lowering; what a user may type; with the wheels, facts.

JAX_TOPOLOGIES names the platforms whose wheels are installed, "cuda" or "tpu"; their tests then run
in the slow set.
"""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import hlo
from dml_jax import main
from dml_jax.backbones import bn_inception, efficientnet_lite, resnet, vit
from dml_jax.config import files as config_files
from dml_jax.config import plugin_module
from dml_jax.errors import ConfigError
from dml_jax.lab import compilation
from tests.config.cases import of_papers
from tests.lab.topologies import on_this_machine
from tests.papers import ROOT


def lowered(name: str, platforms: tuple[str, ...] = ("cuda", "tpu"), **train: Any) -> dict[str, str]:
    """The StableHLO of a training step by platform; the network has one block of each stage, or one
    in all (ResNets)."""
    config = config_files.resolved(str(ROOT / "configs" / f"{name}.py"), {f"train.{k}": v for k, v in train.items()})
    few = {"depth": 1, "depths": (1,) * len(getattr(config.backbone, "depths", ()))}
    if config.backbone.name == "resnet":
        few |= {"depths": (1,), "widths": config.backbone.widths[:1]}
    few = {key: value for key, value in few.items() if hasattr(config.backbone, key)}
    config = replace(config, backbone=replace(config.backbone, **few))
    traced = compilation.traced(compilation.describe(config, on_this_machine().mesh))
    return {platform: traced.lower(lowering_platforms=(platform,)).as_text() for platform in platforms}


def lines(text: str, operation: str) -> list[str]:
    return [line for line in text.splitlines() if f"stablehlo.{operation}" in line]


OTHERS = [facts.files[0] for facts in of_papers().values() if not facts.of_students]


@pytest.mark.parametrize(
    "name", ["cub_vit", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cub_baseline", *OTHERS))]
)
def test_a_float32_step_lowers_for_accelerators_in_float32(name: str) -> None:
    """Of every method; data sets change nothing that is lowered in another way."""
    for text in lowered(name).values():
        products = lines(text, "convolution") + lines(text, "dot_general")
        assert len(products) > 10
        for line in products:
            assert "HIGHEST, HIGHEST" in re.sub(r"#stablehlo<precision (\w+)>", r"\1", line), line
            assert "bf16" not in line
        assert "callback" not in text
        assert "xf64" not in text


NETWORKS: dict[str, tuple[Any, int]] = {
    "resnet": (resnet.Config(depths=(1, 1, 1, 1)), 17),
    "bn_inception": (bn_inception.Config(), 69),
    "efficientnet_lite": (efficientnet_lite.Config(depths=(1,) * 7), 22),
    "vit": (replace(vit.PUBLISHED["dinov2_vits14"], depth=1), 0),  # patches are products
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n == "bn_inception" else []) for n in NETWORKS]
)
def test_forms_for_cpus_leave_no_trace(name: str) -> None:
    """Each convolution has two gradients, the first one has one; no gradient is summed in bfloat16."""
    config, count = NETWORKS[name]
    backbone = plugin_module("backbone", name).build(replace(config, dtype="bfloat16"))
    params, stats = jax.eval_shape(lambda key: backbone.init(key, (70, 70)), jax.random.key(0))

    def loss(params: Any, stats: Any, images: jax.Array) -> jax.Array:
        return backbone.apply(params, stats, images, train=True)[0].sum()

    images = jax.ShapeDtypeStruct((2, 70, 70, 3), np.float32)
    traced = jax.jit(jax.grad(loss)).trace(params, stats, images)
    for platform in ("cuda", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        convolutions = lines(text, "convolution")
        assert len(convolutions) == max(3 * count - 1, 0)
        for line in convolutions:
            operands = re.search(r": \(tensor<[x\d]*(\w+)>, tensor<[x\d]*(\w+)>\)", line)
            assert operands.groups() == ("bf16", "bf16")
        if count:  # of the kernels' gradients
            assert text.count("LayoutConstraint") == count
        over_images = [line for line in lines(text, "reduce(") if "add across dimensions = [0" in line]
        assert not any("bf16" in line for line in over_images)


def test_precisions_that_a_device_does_not_have() -> None:
    """And the type of each product where it has them: the embedding layer's is that of the heads."""
    config = config_files.resolved(str(ROOT / "configs" / "cub_baseline.py"), {"train.precision": "tensorfloat32"})
    text = lowered("cub_baseline", ("cuda",), precision="tensorfloat32")["cuda"]
    asked = {found for line in lines(text, "convolution") for found in re.findall(r"precision (HIGH\w*|DEFAULT)", line)}
    assert asked == {"HIGH"}
    assert "[HIGHEST, HIGHEST]" in text  # similarities and losses
    tpu = SimpleNamespace(size=1, devices=np.array([SimpleNamespace(platform="tpu")]))
    with pytest.raises(ConfigError, match=r"train\.precision='tensorfloat32': TPUs do not support it; use bfloat16"):
        compilation.describe(config, tpu)


def test_costs_of_a_step() -> None:
    """On two devices of this machine; FLOPs are compared with those of the traced program."""
    few = {"backbone.depths": "(1,)", "backbone.widths": "(16,)"}
    config = config_files.resolved(str(ROOT / "configs" / "digits_baseline.py"), few)
    topology = on_this_machine(2)
    found = compilation.costs(config, topology)
    jaxpr = compilation.traced(compilation.describe(config, topology.mesh)).jaxpr.jaxpr
    assert found["flops"] == pytest.approx(hlo.flops(jaxpr, "cuda"), rel=0.15)  # padding, sums
    sent = {name: each["bytes"] for name, each in found["collectives"].items()}
    assert sent.keys() == {"all-gather f32", "all-reduce f32"}
    twice = 2 * sent["all-reduce f32"] + sent["all-gather f32"]
    assert found["seconds"]["network"] == pytest.approx(twice / 2 / 450e9)
    assert found["seconds"]["compute"] == found["flops"] / 2 / 67e12
    assert found["bound"] == {"by": "memory", "seconds": found["traffic"] / 3.35e12}
    assert found["images_per_second"] == 64 / found["bound"]["seconds"]
    with pytest.raises(ConfigError, match=r"data\.batch_size=64: the training step needs 0\.0 GiB of the 0\.0 of"):
        compilation.costs(config, on_this_machine(2)._replace(memory=1000))


def test_operations_of_a_program() -> None:
    text = """
    %fused (p: bf16[4,4]) -> f32[4,4] {
      %p = bf16[4,4]{1,0} parameter(0)
      ROOT %q = f32[4,4]{1,0} convert(%p)
    }
    ENTRY %main (a: f32[4,4], b: bf16[4,4]) -> f32[4,4] {
      %a = f32[4,4]{1,0} parameter(0)
      %b = bf16[4,4]{1,0} parameter(1)
      %c = f32[4,4]{1,0} dot(%a, %a), lhs_contracting_dims={1}
      %d = (f32[4,4]{1,0}, u8[0]{0}) custom-call(%b, %b), custom_call_target="__cudnn$convForward"
      %e = (f32[4,4]{1,0}, s8[8]{0}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul"
      %s = (f32[4,4]{1,0}, pred[3]{0}) all-reduce-start(%c, %n), to_apply=%add
      %t = (f32[4,4]{1,0}, pred[3]{0}) all-reduce-done(%s)
      %k = (f32[4,4]{1,0:S(1)}, f32[4,4]{1,0}, u32[]{:S(2)}) copy-start(%a)
      %h = f32[2,4]{1,0} slice(%a), slice={[0:2], [0:4]}
      ROOT %f = f32[4,4]{1,0} fusion(%b), kind=kLoop, calls=%fused
    }
    """
    found = compilation.operations(text)
    assert found["products"] == {"dot f32": 1, "convolution bf16": 1, "dot bf16×f32": 1}
    assert found["collectives"] == {"all-reduce f32×pred": {"count": 1, "bytes": 67}}
    dot, convolution, product = 3 * 64, 64 + 2 * 32, 64 + 64 + 32  # without scratch
    assert found["traffic"] == dot + convolution + product + (67 + 64) + 64 + 2 * 32 + 96


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h100:8", "v5e:2x2"])
def test_compiled_facts(name: str, tmp_path: Path) -> None:
    """In an environment with the wheels: no sum over devices is one of bfloat16."""
    platform = "cuda" if name.startswith("h100") else "tpu"
    if platform not in os.environ.get("JAX_TOPOLOGIES", ""):
        pytest.skip(f"JAX_TOPOLOGIES does not name {platform}")
    config = f"--config={ROOT}/configs/digits_baseline.py"
    options = ["--config.train.precision=bfloat16", "--mode=compile", f"--topology={name}"]
    main.execute([config, *options, f"--workdir={tmp_path}"])
    step = json.loads((tmp_path / "compile.json").read_text())
    assert 0 < step["memory"] < 2**30
    assert step["products"]["convolution bf16"] > 20
    assert "all-reduce f32" in step["collectives"]
    assert "all-reduce bf16" not in step["collectives"]
