"""Turns published weights into a directory that `backbone.pretrained` names:

    python -m dml_jax.convert --weights=hf://timm/resnet50.tv_in1k [--output=weights/resnet50] [--backbone=resnet50]

--weights is a .safetensors, .pth or .pt file, an address, or hf://owner/repository[/file]; the layouts of torchvision,
timm, Cadene's collection, SegFormer and Hugging Face are recognised, and the checkpoints that the authors of MPN, HIST
and DiVA released (MPN's two files joined by a comma: backbone,network). Nothing in a file is executed. Where torch is
installed, every layer is compared with it.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dml_jax import cli, files
from dml_jax.config_schema import suggest
from dml_jax.errors import ConfigError, WeightsError

LIMIT = 1e-4  # of a layer's largest output; float32 rounding stays below 1e-5


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    flags.add_argument("--weights", metavar="FILE", help="a file, an address or hf://owner/repository")
    flags.add_argument(
        "--output", metavar="DIRECTORY", help="default: weights/<backbone>, weights/<file> for checkpoints"
    )
    flags.add_argument("--backbone", metavar="NAME", help="stop unless the weights are of this one, e.g. resnet50")
    flags.add_argument("--skip_parity", action="store_true", help="do not compare with torch")
    return flags


def variants() -> dict[str, Any]:
    """Configurations with a name of their own."""
    from dml_jax.backbones import bn_inception, deit, googlenet, mit, resnet

    made: list[Callable[[], Any]] = [resnet.resnet18, resnet.resnet34, resnet.resnet50, resnet.resnet101]
    made += [deit.deit_small, deit.deit_small_distilled, mit.mit_b0, mit.mit_b1, mit.mit_b2]
    named = {make.__name__: make() for make in made}
    return named | {"bn_inception": bn_inception.Config(), "googlenet": googlenet.Config()}


def execute(arguments: list[str]) -> None:
    """Reads, recognises, checks, writes, compares.

    Raises:
      UserError: with nothing written.
    """
    options, overrides = parser().read(arguments)
    if overrides:
        raise ConfigError(f"--config.{next(iter(overrides))}: converting takes no configuration")
    if not options.weights:
        raise ConfigError("--weights: missing; give a file, an address or hf://owner/repository")
    named = variants()
    if options.backbone and options.backbone not in named:
        raise ConfigError(f"--backbone={options.backbone}: {suggest(options.backbone, named)}")

    from dml_jax.backbones.weights import download, from_torch, store, tensor_files

    if options.output:
        store.free(files.expand_path("--output", options.output))
    paths = [download.local(source, files.cache_dir() / "weights") for source in options.weights.split(",")]
    converted = from_torch.convert({str(path): tensor_files.read(path) for path in paths})
    config = converted.weights.config
    known = next((name for name, variant in named.items() if variant == config), config.name)
    if options.backbone and known != options.backbone:
        raise WeightsError(f"--backbone={options.backbone}: {options.weights} holds {known}")
    stem = known if converted.kind == "backbone" else paths[0].stem
    out = files.expand_path("--output", options.output or str(Path("weights") / stem))
    arrays = store.finite(converted.tensors, options.weights)
    compared = "" if options.skip_parity else parity(converted, arrays, options.weights)
    info = converted.info(options.weights, {path.name: files.sha256(path) for path in paths})
    store.write(out, arrays, info)
    print(f"{options.weights}: {known}, layout of {info['layout']}, {converted.kind}")
    if known not in named:
        print(f"  warning: of none of the sizes {', '.join(named)}; if it should be one, blocks are missing")
    for name, digest in info["source_sha256"].items():
        print(f"  SHA-256 {digest}  {name}")
    print(f"  {len(arrays)} tensors, {info['parameters']:,} parameters without classifier")
    if compared:
        print(f"  {compared}")
    print(f"written: {out}; use it with --config.backbone.pretrained={out}")


def parity(converted: Any, arrays: dict[str, Any], source: str) -> str:
    """One line on how the converted weights compare with torch.

    Raises:
      WeightsError: a layer deviates by more than rounding.
    """
    from dml_jax.backbones.weights import parity, store

    if importlib.util.find_spec("torch") is None:
        return "not compared with torch, which is not installed"
    weights = converted.weights
    backbone = importlib.import_module(f"dml_jax.backbones.{weights.config.name}").build(weights.config)
    params, stats = (store.nest(arrays, f"backbone/{part}/") for part in ("params", "stats"))
    image_shape = weights.image_shape if weights.config.name == "deit" else (64, 64)
    report = parity.compare(backbone, params, stats, weights.tensors, converted.torch_names, image_shape)
    line = f"{report.layers} layers against torch: largest relative deviation {report.deviation:.1e}, in {report.worst}"
    if report.deviation > LIMIT:
        raise WeightsError(f"{source}: {line}; nothing was written")
    return line


def main() -> int:
    """Runs the command on `sys.argv`; returns its exit code."""
    return cli.status(lambda: execute(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
