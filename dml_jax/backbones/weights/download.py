"""Finding published weights: in an installed package, on the Hugging Face hub, or at a URL."""

import hashlib
import re
import urllib.parse
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from dml_jax.backbones.weights import packaged, tensor_files
from dml_jax.errors import WeightsError
from dml_jax.files import atomic_write, expand_path, sha256
from dml_jax.remote import downloads, hub_client

# Usual names of weight files in repositories of the hub, in order of preference.
_HUB_FILES = ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin")


def fetch(source: str, cache: Path) -> Path:
    """The local file for a value of `--weights`, downloaded if necessary.

    Args:
      source: the name of a package's weights ("lite0"), a path, `hf://owner/repository[/file]`, or an http(s) URL.
      cache: directory for files from a URL, which are downloaded again if they were changed there; the hub's client has
        its own cache.

    Raises:
      WeightsError: unreachable, not found, forbidden, interrupted, no weights, or another SHA-256 than the hub or the
        name of the file says. Such files are not kept.
    """
    if source in packaged.PACKAGES:
        return packaged.source(source)
    if source.startswith("hf://"):
        return _fetch_from_hub(source)
    if source.startswith(("http://", "https://")):
        return _fetch_url(source, cache)
    return expand_path("--weights", source)


def _fetch_from_hub(source: str) -> Path:
    owner, _, rest = source.removeprefix("hf://").partition("/")
    repository, _, file = rest.partition("/")
    if not (owner and repository):
        raise WeightsError(f"{source}: must be hf://owner/repository or hf://owner/repository/file")
    names = (file,) if file else _HUB_FILES

    def first(there: Sequence[str]) -> list[str]:
        return [name for name in names if name in there][:1]

    elsewhere = (
        ", or, on a machine with network access, download the file from "
        f"https://huggingface.co/{owner}/{repository} and give its path"
    )
    found = hub_client.fetch(f"{owner}/{repository}", None, first, WeightsError, elsewhere)
    if not found:
        raise WeightsError(f"{source}: contains none of {', '.join(names)}; name the file")
    return next(iter(found.values()))


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
    if not digits:  # then a part, or a message of the server, is noticed only by reading it
        try:
            tensor_files.read(target)
        except WeightsError as problem:
            target.unlink()
            raise WeightsError(f"{source}: {str(problem).removeprefix(f'{target}: ')}") from None
    with atomic_write(record) as draft:
        draft.write_text(sha256(target))
    return target
