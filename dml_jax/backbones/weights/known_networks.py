"""Published weights: the network they belong to, and their conversion to a directory."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from dml_jax import files
from dml_jax.backbones.contract import Config
from dml_jax.backbones.weights import convert, converted, tensor_files
from dml_jax.config import choices, modules, plugin_module
from dml_jax.errors import WeightsError
from dml_jax.seal import Identity

FAMILIES = "dino", "deit", "vit"  # networks of equal tensors that expect different pixels


class Written(NamedTuple):
    """Converted weights: their directory, network, content, and the networks with these tensors."""

    directory: Path
    network: str
    alternatives: list[str]
    tensors: int
    metadata: dict[str, Any]  # content of `weights.json`


def published() -> dict[str, Config]:
    """The networks that the backbone modules declare, by name."""
    found: dict[str, Config] = {}
    for name in choices("backbone"):
        found |= getattr(plugin_module("backbone", name), "PUBLISHED", {})
    return found


def fitting(config: Config, named: dict[str, Config]) -> list[str]:
    """The names of the published networks with the same tensors."""
    from dml_jax.backbones import vit  # which imports `converted`

    def structure(config: Config) -> dict[str, Any]:
        """The fields that determine the tensors."""
        free = {"name", "output", "pixels", "interpolation"}
        omitted = free if isinstance(config, vit.Config) else set[str]()
        return {key: value for key, value in asdict(config).items() if key not in omitted}

    return [name for name, variant in named.items() if structure(variant) == structure(config)]


def chosen(names: list[str], source: str) -> str:
    """The network whose family is in the name of the file or repository, or the first."""
    text = source.lower() if "://" in source else Path(source).name.lower()
    family = next((word for word in FAMILIES if word in text), "")
    return next((name for name in names if name.startswith(family)), names[0] if names else "")


def convert_files(
    weights: str,
    output: str | None = None,
    backbone: str | None = None,
    identify: Callable[[Path], Identity] | None = None,
) -> Written:
    """Converts published weights to a new directory.

    Args:
      weights: paths or `hf://owner/repository[/file]`, separated by a comma if there are two.
      output: the directory; by default weights/<network>, or weights/<file> for a checkpoint.
      backbone: the name of the network; by default it is recognised.
      identify: see `converted.write`.

    Raises:
      WeightsError: the tensors belong to no known network or another one, or the directory exists.
    """
    from dml_jax.backbones import vit

    named = published()
    if output:
        converted.check_output(files.expand_path("--output", output))
    paths = [tensor_files.fetch(source) for source in weights.split(",")]
    layouts = [declared.CHECKPOINT for declared in modules.parts("method", "checkpoints").values()]
    found = convert.convert({str(path): tensor_files.read(path) for path in paths}, layouts)
    names = fitting(found.network.config, named)
    name = backbone or chosen(names, weights)
    if name not in names:
        sizes = found.metadata("", {})["architecture"]
        raise WeightsError(
            f"{weights}: contains {' or '.join(names) or 'another network'} "
            f"({', '.join(f'{key}={value!r}' for key, value in sizes.items())}), not "
            f"{backbone or 'one of ' + ', '.join(named)}; give other weights, or omit --backbone"
        )
    recognised, config = found.network.config, named[name]
    if isinstance(recognised, vit.Config) and isinstance(config, vit.Config):
        # The library that wrote the file determines the interpolation.
        config = replace(config, interpolation=recognised.interpolation)
        found = found._replace(network=found.network._replace(config=config))
    stem = name if found.kind == "backbone" else paths[0].stem
    directory = files.expand_path("--output", output or str(Path("weights") / stem))
    arrays = tensor_files.finite(found.tensors, weights)
    metadata = found.metadata(weights, {path.name: files.sha256(path) for path in paths})
    converted.write(directory, arrays, metadata, identify)
    return Written(directory, name, names, len(arrays), metadata)
