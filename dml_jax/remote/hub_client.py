"""The Hugging Face hub: its failures as one sentence (extra "hub").

The client of the hub keeps the files in its own cache, and repeats and continues interrupted
downloads.
"""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dml_jax.errors import UserError
from dml_jax.files import reason

SECONDS = 60.0  # without an answer; the client would wait for ever


def client(error: type[UserError], needed_for: str) -> Any:
    """The package `huggingface_hub`, which prints errors only and waits for answers at most
    `SECONDS`."""
    # Xet, the faster of its two ways to transfer files, tries for minutes to reach servers that a
    # firewall blocks.
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    try:
        library = importlib.import_module("huggingface_hub")
    except ImportError:
        problem = "huggingface_hub is not installed: pip install huggingface_hub"
        raise error(f"{needed_for}: {problem}") from None
    importlib.import_module("huggingface_hub.utils").logging.set_verbosity_error()
    library.get_session().timeout = SECONDS
    return library


@contextmanager
def asking(
    address: str, error: type[UserError], done: str = "downloaded", elsewhere: str = ""
) -> Iterator[Any]:
    """Context with the client of the hub, whose failures become `error`: "`address` cannot be
    `done`".

    Args:
      address: hf://… or the option that was given.
      elsewhere: how else to get the files; follows "try again" in messages.
    """
    library = client(error, address)
    try:
        yield library
    except Exception as problem:  # the client also raises errors of the libraries it uses
        if isinstance(problem, OSError) and problem.errno:
            problem.filename = problem.filename or library.constants.HF_HUB_CACHE
            raise
        raise error(f"{address}: cannot be {done} {explain(problem, elsewhere)}") from None


def explain(problem: Exception, elsewhere: str = "") -> str:
    """Reason for a failed request to the hub, and the remedy: "(reason); remedy"."""
    from huggingface_hub import errors

    vague = errors.LocalEntryNotFoundError | RuntimeError
    while isinstance(problem, vague) and isinstance(problem.__cause__, Exception):
        problem = problem.__cause__
    why, remedy = reason(problem), f"try again{elsewhere}"
    if isinstance(problem, errors.HfHubHTTPError):
        status = problem.response.status_code
        why = f"HTTP {status}: {reason(Exception(problem.server_message or 'no reason given'))}"
        if status in (401, 403):
            remedy = "log in with `hf auth login` as a user who may do this"
    match problem:
        case errors.GatedRepoError():
            remedy = "accept its conditions on its page of the hub, and log in with `hf auth login`"
        case errors.RepositoryNotFoundError() | errors.RevisionNotFoundError():
            why = "there is no such repository, branch or commit, or it is private"
            remedy = "check the name, or log in with `hf auth login`"
        case errors.HFValidationError():
            remedy = "give owner/name"
    return f"({why}); {remedy}"
