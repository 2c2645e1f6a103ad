"""Downloading published weights from the Hugging Face hub or from a URL."""

import re
import shutil
import urllib.request
from pathlib import Path
from urllib.error import URLError

from dml_jax.errors import WeightsError
from dml_jax.files import atomic_write, expand_path, sha256

# Usual names of weight files in repositories of the hub, in order of preference.
_HUB_FILES = ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin")


def fetch(source: str, cache: Path) -> Path:
    """The local file for a value of `--weights`, downloaded if necessary.

    Args:
      source: a path, `hf://owner/repository[/file]`, or an http(s) URL.
      cache: directory for files from a URL; the hub's client has its own cache.

    Raises:
      WeightsError: unreachable, not found, or a SHA-256 that differs from the one in the file name.
    """
    if source.startswith("hf://"):
        return _fetch_from_hub(source)
    if source.startswith(("http://", "https://")):
        return _fetch_url(source, cache)
    return expand_path("--weights", source)


def _fetch_from_hub(source: str) -> Path:
    try:
        import huggingface_hub
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError:
        raise WeightsError(f"{source}: downloading from the hub requires `pip install huggingface_hub`") from None
    huggingface_hub.utils.logging.set_verbosity_error()  # otherwise it logs every failed attempt
    owner, _, rest = source.removeprefix("hf://").partition("/")
    repository, _, file = rest.partition("/")
    if not (owner and repository):
        raise WeightsError(f"{source}: must be hf://owner/repository or hf://owner/repository/file")
    for name in (file,) if file else _HUB_FILES:
        try:
            return Path(huggingface_hub.hf_hub_download(f"{owner}/{repository}", name))
        except Exception as error:  # the hub's client also raises errors of the libraries it uses
            if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
                continue  # the repository exists, but not this file
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise WeightsError(
                f"{source}: cannot be downloaded ({reason}); on a machine with network access, download the file from "
                f"https://huggingface.co/{owner}/{repository} and give its path"
            ) from None
    raise WeightsError(f"{source}: contains none of {', '.join((file,) if file else _HUB_FILES)}; name the file")


def _fetch_url(source: str, cache: Path) -> Path:
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
                f"{source}: cannot be downloaded ({error}); download it on a machine with network access and give its "
                "path"
            ) from None
    # Torch's convention: the name ends in the first digits of the file's SHA-256.
    digits = re.search(r"-([0-9a-f]{8,})\.\w+$", name)
    if digits and not sha256(target).startswith(digits[1]):
        target.unlink()
        raise WeightsError(f"{source}: the SHA-256 of the downloaded file differs from the one in its name; try again")
    return target
