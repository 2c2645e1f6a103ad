"""Loads a command's model and sets up the compilation cache and memory allocation."""

from __future__ import annotations

import ctypes
from argparse import Namespace
from contextlib import suppress
from typing import TYPE_CHECKING

import dml_jax
from dml_jax import files
from dml_jax.commands import cli

if TYPE_CHECKING:
    from dml_jax.data.split import Split
    from dml_jax.inference.model import Model

KEPT_MEMORY = {-1: -1, -4: 0, -8: 1}  # M_TRIM_THRESHOLD, M_MMAP_MAX and M_ARENA_MAX of <malloc.h>


def load(options: Namespace, model: str = "") -> Model:
    """The model that the options of `cli.add_model` name, or `model`, with the same options."""
    extra = {key: getattr(options, key) for key in ("flip", "scales", "runtime") if key in options}
    if "runtime" not in options:  # these commands always embed with JAX
        enable_compilation_cache()
    loaded = dml_jax.load(
        model or options.model, options.checkpoint, trust_code=options.trust_code, **extra
    )
    if "runtime" in options and loaded.runtime == "jax":
        enable_compilation_cache()
    return loaded


def load_on_images(options: Namespace, model: str = "") -> tuple[Model, dict[str, Split]]:
    """The model of `load` and the labelled images of --data."""
    from dml_jax.data import formats

    path = files.expand_path("--data", options.data)
    loaded = load(options, model)
    how = [cli.layout(options)] if "splits" in options else []
    return loaded, formats.load_labelled(path, loaded.config.data, *how)


def enable_compilation_cache() -> None:
    """Keeps compiled programs between runs, in the user's cache directory unless JAX is configured
    otherwise."""
    import jax

    if not jax.config.values["jax_compilation_cache_dir"]:
        jax.config.update("jax_compilation_cache_dir", str(files.cache_dir() / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def keep_freed_memory() -> None:
    """Keeps glibc from returning freed memory to the operating system, so that training steps on a
    CPU reuse it.

    XLA allocates temporary memory, tens of megabytes for a small network, whenever a program runs.
    Fetching and clearing these pages took 40 % of a training step of such a network.
    glibc keeps freed memory only in its main arena, so all threads use that one; the arenas of
    other threads are too small.
    """
    with suppress(AttributeError, OSError):  # not glibc
        change = ctypes.CDLL(None).mallopt
        for parameter, value in KEPT_MEMORY.items():
            change(parameter, value)
