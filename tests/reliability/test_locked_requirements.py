"""`requirements.lock` has hashes for the same versions as the other requirements files."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def pins(file: str) -> dict[tuple[str, str], str]:
    """(name, marker) -> version of the requirements in a file."""
    found = {}
    for line in (ROOT / file).read_text().splitlines():
        if match := re.match(r"([\w.-]+)==([\w.]+)\s*(?:;\s*([^\\]*))?", line):
            marker = re.sub(r"python_(full_)?version|['\" ]", "", match[3] or "")
            found[match[1].lower().replace("_", "-"), marker] = match[2]
    return found


def test_same_versions_with_hashes() -> None:
    locked, tested = pins("requirements.lock"), pins("constraints.txt") | pins("requirements.txt")
    everywhere = {name: version for (name, marker), version in tested.items() if not marker}
    assert {
        key: pin for key, pin in locked.items() if tested.get(key, everywhere.get(key[0])) != pin
    } == {}
    direct = {name for name, _ in pins("requirements.txt")}
    assert direct <= {name for name, _ in locked}
    text = (ROOT / "requirements.lock").read_text()
    entries = re.split(r"\n(?=[\w.-]+==)", text)[1:]
    assert len(entries) == len(locked)
    assert all("--hash=sha256:" in entry for entry in entries)
