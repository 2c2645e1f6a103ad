"""Fetching published weights: from the Hugging Face hub or by their address."""

import re
import shutil
import urllib.request
from pathlib import Path
from urllib.error import URLError

from dml_jax.errors import WeightsError
from dml_jax.files import atomic_write, expand_path, sha256

# Names under which repositories of the hub keep their weights, the best first.
_HUB_FILES = ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin")


def local(source: str, cache: Path) -> Path:
    """The file a `--weights` names, fetched if need be.

    Args:
      source: a path, `hf://owner/repository[/file]`, or an http(s) address.
      cache: directory for what comes from an address; the hub keeps its own.

    Raises:
      WeightsError: not reachable, not there, or (where the name carries one, as torch's do) with another SHA-256.
    """
    if source.startswith("hf://"):
        return _hub(source)
    if source.startswith(("http://", "https://")):
        return _address(source, cache)
    return expand_path("--weights", source)


def _hub(source: str) -> Path:
    try:
        import huggingface_hub
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError:
        raise WeightsError(f"{source}: fetching from the hub needs `pip install huggingface_hub`") from None
    huggingface_hub.utils.logging.set_verbosity_error()  # it would print every failed try
    owner, _, rest = source.removeprefix("hf://").partition("/")
    repository, _, file = rest.partition("/")
    if not (owner and repository):
        raise WeightsError(f"{source}: write hf://owner/repository or hf://owner/repository/file")
    for name in (file,) if file else _HUB_FILES:
        try:
            return Path(huggingface_hub.hf_hub_download(f"{owner}/{repository}", name))
        except Exception as error:  # the hub's client lets many kinds through
            if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
                continue  # the repository is there, this file is not
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise WeightsError(
                f"{source}: cannot be fetched ({reason}); on a machine with network, fetch the file from "
                f"https://huggingface.co/{owner}/{repository} and give its path"
            ) from None
    raise WeightsError(f"{source}: holds none of {', '.join((file,) if file else _HUB_FILES)}; name the file")


def _address(source: str, cache: Path) -> Path:
    name = source.rpartition("/")[2]
    target = cache / name
    if not target.exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with (
                urllib.request.urlopen(source, timeout=60) as reply,
                atomic_write(target) as draft,
                draft.open("wb") as file,
            ):
                shutil.copyfileobj(reply, file)
        except (URLError, OSError, ValueError) as error:
            raise WeightsError(
                f"{source}: cannot be fetched ({error}); fetch it on a machine with network and give its path"
            ) from None
    # torch's convention: the name ends in the first digits of the file's SHA-256.
    digits = re.search(r"-([0-9a-f]{8,})\.\w+$", name)
    if digits and not sha256(target).startswith(digits[1]):
        target.unlink()
        raise WeightsError(f"{source}: what came is not the file its name promises (SHA-256); try again")
    return target
