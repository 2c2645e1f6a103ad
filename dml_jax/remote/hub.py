"""The client of the Hugging Face hub (extra "hub"), with its failures as one sentence.

The client has its own cache, retries requests and resumes interrupted downloads.
"""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dml_jax.errors import UserError
from dml_jax.files import reason

SECONDS = 60.0  # without an answer; by default, the client waits forever


@contextmanager
def asking(address: str, error: type[UserError], alternative: str = "") -> Iterator[Any]:
    """Context with the package `huggingface_hub`, whose failures become `error`.

    Args:
      address: start of messages: hf://… or an option.
      alternative: end of messages, after "try again": how else to get the files.
    """
    # Xet, the faster transfer protocol, tries for minutes to reach servers behind a firewall.
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    try:
        library: Any = importlib.import_module("huggingface_hub")
    except ImportError:
        what = 'huggingface_hub is not installed: pip install -e ".[hub]"'
        raise error(f"{address}: {what}") from None
    utils: Any = importlib.import_module("huggingface_hub.utils")
    utils.logging.set_verbosity_error()
    utils.disable_progress_bars()  # errors would be appended to their lines
    library.get_session().timeout = SECONDS
    try:
        yield library
    except Exception as problem:  # the client also raises errors of its libraries
        if isinstance(problem, OSError) and problem.errno:
            problem.filename = problem.filename or library.constants.HF_HUB_CACHE
            raise
        cause = problem
        wrappers = library.errors.LocalEntryNotFoundError | RuntimeError
        while isinstance(cause, wrappers) and isinstance(cause.__cause__, Exception):
            cause = cause.__cause__
        why = getattr(cause, "server_message", None) or reason(cause)
        if type(cause) is library.errors.RepositoryNotFoundError:
            why = "the repository does not exist or is private"  # the hub says "Invalid username"
        remedy = "check the name, log in with `hf auth login` if it is private, or try again"
        raise error(
            f"{address}: the request to the hub failed ({why}); {remedy}{alternative}"
        ) from None
