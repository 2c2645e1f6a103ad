"""What the papers' folders, each of which can be deleted, define for other configurations."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import dml_jax


def stating(file: str) -> dict[str, ModuleType]:
    """The modules of this name in the papers' folders, by folder."""
    folders = sorted(path.parent.name for path in Path(__file__).parent.glob(f"*/{file}.py"))
    return {name: import_module(f"configs.{name}.{file}") for name in folders}


def installed(method: str) -> bool:
    """Whether the package has a method: papers compare with each other's, and each can be
    deleted."""
    methods = Path(dml_jax.__file__).parent / "methods"  # importing them would import JAX
    return (methods / method).is_dir() or (methods / f"{method}.py").is_file()
