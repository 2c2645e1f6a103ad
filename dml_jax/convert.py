"""Converts published weights to a directory for `backbone.pretrained`:

    python -m dml_jax.convert --weights=hf://timm/resnet50.tv_in1k [--output=weights/resnet50] [--backbone=resnet50]

--weights is a .safetensors, .pth or .pt file, a URL, or hf://owner/repository[/file]. Supported are weights from
torchvision, timm, Cadene's pretrained-models.pytorch, SegFormer and Hugging Face, and the checkpoints published by the
authors of MPN, HIST and DiVA (for MPN, the two files separated by a comma: backbone,network). No code in a file is
executed. If torch is installed, the output of every layer is compared with torch.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dml_jax import cli, files
from dml_jax.errors import ConfigError, WeightsError, printable, suggest

if TYPE_CHECKING:  # the backbones import Flax, which --help does not need
    import numpy as np

    from dml_jax.backbones.weights.detect_architecture import BackboneConfig
    from dml_jax.backbones.weights.from_torch import Converted

MAX_DEVIATION = 1e-4  # relative to the largest output of a layer; float32 rounding stays below 1e-5


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    flags.add_argument("--weights", metavar="FILE", help="file, URL or hf://owner/repository")
    flags.add_argument(
        "--output", metavar="DIRECTORY", help="default: weights/<backbone>, for authors' checkpoints weights/<file>"
    )
    flags.add_argument("--backbone", metavar="NAME", help="fail unless the weights are of this backbone, e.g. resnet50")
    flags.add_argument("--skip_parity", action="store_true", help="skip the comparison with torch")
    return flags


def named_configs() -> "dict[str, BackboneConfig]":
    """Configurations of the published networks by name."""
    from dml_jax.backbones import bn_inception, deit, googlenet, mit, resnet

    factories: list[Callable[[], BackboneConfig]] = [
        *(resnet.resnet18, resnet.resnet34, resnet.resnet50, resnet.resnet101),
        *(deit.deit_small, deit.deit_small_distilled, mit.mit_b0, mit.mit_b1, mit.mit_b2),
    ]
    return {factory.__name__: factory() for factory in factories} | {
        "bn_inception": bn_inception.Config(),
        "googlenet": googlenet.Config(),
    }


def unsupported_name(config: "BackboneConfig") -> str:
    """What a network is called that has the layers of a supported one but not its size."""
    from dml_jax.backbones import deit, mit, resnet

    published = {
        "ResNet-152": replace(resnet.resnet101(), depths=(3, 8, 36, 3)),
        "DeiT-Ti or ViT-Ti": replace(deit.deit_small(), width=192, heads=3),
        "DeiT-B or ViT-B": replace(deit.deit_small(), width=768, heads=12),
        "distilled DeiT-B": replace(deit.deit_small_distilled(), width=768, heads=12),
        "ViT-L": replace(deit.deit_small(), depth=24, width=1024, heads=16),
        "MiT-B3": replace(mit.mit_b2(), depths=(3, 4, 18, 3)),
        "MiT-B4": replace(mit.mit_b2(), depths=(3, 8, 27, 3)),
        "MiT-B5": replace(mit.mit_b2(), depths=(3, 6, 40, 3)),
    }
    return next((name for name, variant in published.items() if variant == config), f"a {config.name} of another size")


def execute(arguments: list[str]) -> None:
    """Reads the command line and converts the weights.

    Raises:
      UserError: invalid input; nothing is written then.
    """
    options = parser().read_plain(arguments, "dml_jax.convert")
    if not options.weights:
        raise ConfigError("--weights: missing; give a file, a URL or hf://owner/repository")
    named = named_configs()
    if options.backbone and options.backbone not in named:
        raise ConfigError(f"--backbone={options.backbone}: {suggest(options.backbone, named)}")

    from dml_jax.backbones.weights import converted_files, download, from_torch, tensor_files

    if options.output:
        converted_files.check_output(files.utf8_path("--output", options.output))
    paths = [download.fetch(source, files.cache_dir() / "weights") for source in options.weights.split(",")]
    converted = from_torch.convert({str(path): tensor_files.read(path) for path in paths})
    config = converted.weights.config
    known = next((name for name, variant in named.items() if variant == config), None)
    if known is None:
        sizes = ", ".join(f"{key}={value!r}" for key, value in converted.metadata("", {})["architecture"].items())
        raise WeightsError(
            f"{options.weights}: holds {unsupported_name(config)} ({sizes}); supported are {', '.join(named)} (if it "
            "should be one of these, blocks are missing)"
        )
    if options.backbone and known != options.backbone:
        raise WeightsError(
            f"--backbone={options.backbone}: {options.weights} contains {known}; omit the option or give other weights"
        )
    stem = known if converted.kind == "backbone" else paths[0].stem
    out = files.utf8_path("--output", options.output or str(Path("weights") / stem))
    arrays = tensor_files.read_finite(converted.tensors, options.weights)
    comparison = "" if options.skip_parity else compare_with_torch(converted, arrays, options.weights)
    metadata = converted.metadata(options.weights, {path.name: files.sha256(path) for path in paths})
    converted_files.write(out, arrays, metadata)
    print(f"{printable(options.weights)}: {known}, names of {metadata['layout']}, {converted.kind}")
    for name, digest in metadata["source_sha256"].items():
        print(f"  SHA-256 {digest}  {printable(name)}")
    print(f"  {len(arrays)} tensors, {metadata['parameters']:,} parameters in the backbone")
    if comparison:
        print(f"  {comparison}")
    print(printable(f"written: {out}; use with --config.backbone.pretrained={out}"))


def compare_with_torch(converted: "Converted", arrays: "dict[str, np.ndarray]", source: str) -> str:
    """Compares every layer with torch; returns the result as one line.

    Raises:
      WeightsError: a layer deviates by more than `MAX_DEVIATION`.
    """
    from dml_jax.backbones.weights import converted_files, parity

    if importlib.util.find_spec("torch") is None:
        return "not compared with torch because torch is not installed"
    weights = converted.weights
    backbone = importlib.import_module(f"dml_jax.backbones.{weights.config.name}").build(weights.config)
    params, stats = (converted_files.subtree(arrays, f"backbone/{part}/") for part in ("params", "stats"))
    image_shape = weights.image_shape if weights.config.name == "deit" else (64, 64)
    report = parity.compare_layers(backbone, params, stats, weights.tensors, converted.torch_names, image_shape)
    line = (
        f"{report.layers} layers compared with torch: "
        f"maximum relative deviation {report.deviation:.1e}, in {report.worst}"
    )
    if report.deviation > MAX_DEVIATION:
        raise WeightsError(f"{source}: {line}; nothing was written")
    return line


def main() -> int:
    """Runs the command on `sys.argv`; returns its exit code."""
    return cli.exit_code(lambda: execute(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
