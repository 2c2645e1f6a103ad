"""The Hugging Face hub: files checked against its digests, and its failures as one sentence (extra "hub").

The client of the hub keeps the files in its own cache, and repeats and continues interrupted downloads.
"""

import hashlib
import importlib
import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dml_jax.errors import UserError
from dml_jax.files import reason, sha256

SECONDS = 60.0  # without an answer, where the client would wait for ever


def client(error: type[UserError], needed_for: str) -> Any:
    """The package `huggingface_hub`, which prints errors only and waits for answers at most `SECONDS`."""
    # Xet, the faster of its two ways to transfer files, tries for minutes to reach servers that a firewall blocks.
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    try:
        library = importlib.import_module("huggingface_hub")
    except ImportError:
        raise error(f"{needed_for}: huggingface_hub is not installed: pip install huggingface_hub") from None
    importlib.import_module("huggingface_hub.utils").logging.set_verbosity_error()
    library.get_session().timeout = SECONDS
    return library


def fetch(
    repository: str,
    revision: str | None,
    choose: Callable[[Sequence[str]], Sequence[str]],
    error: type[UserError],
    elsewhere: str = "",
) -> dict[str, Path]:
    """Files of one commit of a repository by name, downloaded unless the client has them.

    Args:
      revision: branch, tag or commit; None for the main branch.
      choose: given the names of the files, those wanted. If the hub cannot be reached, only those in the cache.
      error: type of the failures; damaged files are not kept.
      elsewhere: the end of the messages that say "try again": how to get the files in another way.
    """
    address = f"hf://{repository}@{revision}" if revision else f"hf://{repository}"
    library = client(error, address)
    try:
        try:
            wait = library.constants.HF_HUB_ETAG_TIMEOUT
            there = library.HfApi().model_info(repository, revision=revision, timeout=wait)
            wanted, offline = choose([entry.rfilename for entry in there.siblings]), False
        except Exception as problem:
            offline = True
            try:
                root = Path(library.snapshot_download(repository, revision=revision, local_files_only=True))
            except Exception:
                raise problem from None
            wanted = choose([path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()])
        found: dict[str, Path] = {}
        for name in wanted:
            with warnings.catch_warnings():  # which is all that the client does about a full disk
                warnings.filterwarnings("error", "Not enough free disk space")
                path = library.hf_hub_download(repository, name, revision=revision, local_files_only=offline)
            revision = Path(path.removesuffix(name)).name  # the same commit for all
            _check(found.setdefault(name, Path(path)))
        return found
    except Exception as problem:  # the client also raises errors of the libraries it uses
        if isinstance(problem, OSError) and problem.errno:
            problem.filename = problem.filename or library.constants.HF_HUB_CACHE
            raise
        raise error(f"{address}: cannot be downloaded {explain(problem, elsewhere)}") from None


def _check(path: Path) -> None:
    """Deletes a damaged file: files of the cache are links to the content, which is named by its digest."""
    if not path.is_symlink():
        return
    blob = path.parent / path.readlink()
    if len(blob.name) == 40:  # git's hash, of files that are not large
        content = blob.read_bytes()
        digest = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    else:
        digest = sha256(blob)
    if digest != blob.name:
        for file in (blob.resolve(), blob, path):
            file.unlink(missing_ok=True)
        raise ValueError(f"the digest of {path.name} is {digest} instead of {blob.name}")


def explain(problem: Exception, elsewhere: str = "") -> str:
    """Reason for a failed request to the hub, and the remedy: "(reason); remedy"."""
    from huggingface_hub import errors

    vague = errors.LocalEntryNotFoundError | RuntimeError
    while isinstance(problem, vague) and isinstance(problem.__cause__, Exception):
        problem = problem.__cause__
    why, remedy = reason(problem), f"try again{elsewhere}"
    if isinstance(problem, errors.HfHubHTTPError):
        why = f"HTTP {problem.response.status_code}: {reason(Exception(problem.server_message or 'no reason given'))}"
        if problem.response.status_code in (401, 403):
            remedy = "log in with `hf auth login` as a user who may do this"
    match problem:
        case errors.GatedRepoError():
            remedy = "accept its conditions on its page of the hub, and log in with `hf auth login`"
        case errors.RepositoryNotFoundError() | errors.RevisionNotFoundError():
            why = "there is no such repository, branch or commit, or it is private"
            remedy = "check the name, or log in with `hf auth login`"
        case errors.HFValidationError():
            remedy = "give owner/name"
        case json.JSONDecodeError():
            why = "the answer is not from a hub, but e.g. a web page of the network"
    return f"({why}); {remedy}"
