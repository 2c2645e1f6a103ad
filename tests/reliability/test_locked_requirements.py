"""`launch/locks` has every package of the requirements files, in the same versions, with hashes."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "cpu": ("requirements.txt",),
    "cuda": ("requirements.txt", "requirements-cuda.txt"),
    "tpu": ("requirements.txt", "requirements-tpu.txt"),
    "dev": ("requirements.txt", "requirements-dev.txt"),
    "ray": ("requirements.txt",),
}


def pins(file: str) -> dict[tuple[str, str], str]:
    """(name, marker) -> version of the requirements in a file."""
    found = {}
    for line in (ROOT / file).read_text().splitlines():
        if match := re.match(r"([\w.-]+)(?:\[\w+\])?==([\w.]+)\s*(?:;\s*([^\\]*))?", line):
            marker = re.sub(r"python_(full_)?version|['\" ]", "", match[3] or "")
            found[match[1].lower().replace("_", "-"), marker] = match[2]
    return found


@pytest.mark.parametrize(("lock", "files"), FILES.items())
def test_same_versions_with_hashes(lock: str, files: tuple[str, ...]) -> None:
    locked = pins(f"launch/locks/{lock}.txt")
    direct = {key: pin for file in files for key, pin in pins(file).items()}
    assert {key: pin for key, pin in direct.items() if locked.get(key) != pin} == {}
    entries = re.split(r"\n(?=[\w.-]+==)", "\n" + (ROOT / f"launch/locks/{lock}.txt").read_text())
    assert len(entries) - 1 == len(locked)
    assert all("--hash=sha256:" in entry for entry in entries[1:])


def test_packages_have_one_version_in_all_locks() -> None:
    """But for "onnx", which needs an older JAX."""
    locks = [pins(f"launch/locks/{lock}.txt") for lock in FILES]
    for key in set().union(*locks):
        assert len({lock[key] for lock in locks if key in lock}) == 1, key
