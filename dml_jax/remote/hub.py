"""The client of the Hugging Face hub (extra "hub"): its failures as one sentence.

The client keeps files in a cache of its own, and repeats and continues interrupted downloads.
"""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dml_jax.errors import UserError
from dml_jax.files import reason

SECONDS = 60.0  # without an answer; the client would wait for ever


@contextmanager
def asking(address: str, error: type[UserError], elsewhere: str = "") -> Iterator[Any]:
    """Context with the package `huggingface_hub`, whose failures become `error`.

    Args:
      address: hf://… or the option that was given; the message starts with it.
      elsewhere: how else to get the files; follows "try again" in messages.
    """
    # Xet, the faster of its two ways to transfer files, tries for minutes to reach servers that a
    # firewall blocks.
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    try:
        library: Any = importlib.import_module("huggingface_hub")
    except ImportError:
        what = 'huggingface_hub is not installed: pip install -e ".[hub]"'
        raise error(f"{address}: {what}") from None
    utils: Any = importlib.import_module("huggingface_hub.utils")
    utils.logging.set_verbosity_error()
    utils.disable_progress_bars()  # an error would be appended to their line
    library.get_session().timeout = SECONDS
    try:
        yield library
    except Exception as problem:  # the client also raises errors of the libraries it uses
        if isinstance(problem, OSError) and problem.errno:
            problem.filename = problem.filename or library.constants.HF_HUB_CACHE
            raise
        cause = problem
        vague = library.errors.LocalEntryNotFoundError | RuntimeError
        while isinstance(cause, vague) and isinstance(cause.__cause__, Exception):
            cause = cause.__cause__
        why = getattr(cause, "server_message", None) or reason(cause)
        if type(cause) is library.errors.RepositoryNotFoundError:
            why = "there is no such repository, or it is private"  # the hub says "Invalid username"
        remedy = "check the name, log in with `hf auth login` if it is private, or try again"
        raise error(
            f"{address}: the request to the hub failed ({why}); {remedy}{elsewhere}"
        ) from None
