"""Downloading published weights from the Hugging Face hub or from a URL."""

import hashlib
import re
import urllib.parse
from pathlib import Path, PurePosixPath

from dml_jax import downloads
from dml_jax.errors import WeightsError
from dml_jax.files import atomic_write, expand_path, sha256

# Usual names of weight files in repositories of the hub, in order of preference.
_HUB_FILES = ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin")


def fetch(source: str, cache: Path) -> Path:
    """The local file for a value of `--weights`, downloaded if necessary.

    Args:
      source: a path, `hf://owner/repository[/file]`, or an http(s) URL.
      cache: directory for files from a URL, which are downloaded again if they were changed there; the hub's client has
        its own cache.

    Raises:
      WeightsError: unreachable, not found, fewer bytes than announced, or a SHA-256 that differs from the one in the
        file name. Such files are not kept.
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


def _create(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WeightsError(
            f"{directory}: cannot be created ({error.strerror}); set XDG_CACHE_HOME to a directory that can be written"
        ) from None


def _fetch_url(source: str, cache: Path) -> Path:
    """Downloads into a directory named after the whole address, beside a file with the SHA-256."""
    directory = cache / hashlib.sha256(source.encode()).hexdigest()[:32]
    name = PurePosixPath(urllib.parse.urlsplit(source).path).name.lstrip(".")[-100:] or "weights"
    target, record = directory / name, directory / ".sha256"
    if target.is_file() and record.is_file() and record.read_text() == sha256(target):
        return target
    _create(directory)
    # Torch's convention: the name ends in the first digits of the file's SHA-256.
    digits = re.search(r"-([0-9a-f]{8,})\.\w+$", name)
    expected = downloads.Source(source, sha256=digits[1] if digits else "")
    elsewhere = "download it on a machine with network access and give its path"
    downloads.fetch(expected, target, WeightsError, elsewhere)
    with atomic_write(record) as draft:
        draft.write_text(sha256(target))
    return target
