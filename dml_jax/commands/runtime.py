"""Settings of a command before JAX computes: the cache of compiled programs, and how memory is freed."""

import ctypes
from contextlib import suppress

from dml_jax import files

KEPT_MEMORY = {-1: -1, -4: 0, -8: 1}  # M_TRIM_THRESHOLD, M_MMAP_MAX and M_ARENA_MAX of <malloc.h>


def enable_compilation_cache() -> None:
    """Keeps compiled programs between runs, in the user's cache directory unless JAX is configured otherwise."""
    import jax

    if not jax.config.values["jax_compilation_cache_dir"]:
        jax.config.update("jax_compilation_cache_dir", str(files.cache_dir() / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def keep_freed_memory() -> None:
    """Keeps glibc from returning freed memory to the operating system, so that training steps on a CPU reuse it.

    XLA allocates the temporary memory of a program, tens of megabytes for a small network, each time it runs. Fetching
    and clearing its pages took 40 % of the time of such a network's step. Memory is only kept in glibc's main arena, so
    all threads share that one; the arenas of other threads are too small for it.
    """
    with suppress(AttributeError, OSError):  # not glibc
        change = ctypes.CDLL(None).mallopt
        for parameter, value in KEPT_MEMORY.items():
            change(parameter, value)
