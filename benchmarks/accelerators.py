"""Compiles training steps for GPUs and TPUs on machines without them: memory, collectives and the
bound of a step's time.

    python -m benchmarks.accelerators [--only=cub_hist] [--output=benchmarks/ACCELERATORS.md]

Needs the wheels of requirements-cuda.txt or requirements-tpu.txt; run it in an environment with
each. A program is compiled once: its facts are kept in `.cache/accelerators.json`, under a
digest of its StableHLO, so the command continues where it was stopped. A step takes half a minute
for an H100, up to ten minutes for a v5e.
"""

import argparse
import hashlib
import json
import math
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks import hlo
from dml_jax import files
from dml_jax.config import files as config_files
from dml_jax.errors import ConfigError
from dml_jax.lab import compilation

GIB = 2**30
CONFIGS = Path(__file__).parents[1] / "configs"
CUB = (
    "cub_hist",
    "cub_mpn",
    "cub_crt",
    "cub_diva",
    "cub_vit:proxy_anchor-vit_small",
    "cub_vit:proxy_anchor-dinov2_vitb14",
)
SOP = ("sop_hist", "sop_mpn", "sop_crt", "sop_diva")
CORE = 307  # images/s that a core decodes and crops (benchmarks/input.py, original files)


class Case(NamedTuple):
    """A configuration, its precision and topology; batches are the papers' unless the devices do
    not divide them."""

    config: str
    precision: str
    topology: str


def cases() -> Iterator[Case]:
    """The rows of the table, without those of deleted papers."""
    there = {file.stem for file in CONFIGS.glob("*.py")}
    return (case for case in _cases() if case.config.partition(":")[0] in there)


def _cases() -> Iterator[Case]:
    for topology in ("h100:1", "h100:8"):
        for name in (*CUB, *SOP):
            for precision in ("bfloat16", "float32"):
                yield Case(name, precision, topology)
    yield Case("cub_hist", "bfloat16", "h100:4x8")
    for name in (*CUB, *SOP):
        yield Case(name, "bfloat16", "v5e:2x2")
    yield Case("cub_hist", "float32", "v5e:2x2")
    yield Case("cub_vit:proxy_anchor-vit_small", "float32", "v5e:2x2")
    yield Case("sop_hist", "bfloat16", "v5e:4x4")


def facts(case: Case, stored: dict[str, Any]) -> dict[str, Any]:
    """The facts of the training step, compiled unless its program is among the stored ones; "code"
    is the date and the hash of the commit."""
    topology = compilation.find_topology(case.topology)
    file, _, variant = case.config.partition(":")
    path = f"configs/{file}.py" + (f":{variant}" if variant else "")
    overrides = {"train.precision": case.precision}
    config = config_files.resolved(path, overrides)
    size, devices = config.data.batch_size, topology.mesh.size
    if size % devices:  # the next multiple that holds as many images of each class
        step = config.data.images_per_class * devices
        overrides["data.batch_size"] = str(-(-size // step) * step)
        config = config_files.resolved(path, overrides)
    experiment = compilation.describe(config, topology.mesh)
    traced = compilation.traced(experiment)
    lowered = traced.lower()
    digest = hashlib.sha256(f"{case} {jax.__version__}\n{lowered.as_text()}".encode()).hexdigest()
    if (known := stored.get(str(case), {})).get("program") == digest:
        return known
    started = time.monotonic()
    memory, text = compilation.memory(lowered, topology)
    found: dict[str, Any] = {"memory": memory}
    if text:
        platform = "cuda" if case.topology.startswith("h100") else "tpu"
        found |= {
            "flops": hlo.flops(traced.jaxpr.jaxpr, platform),
            **compilation.operations(text),
            "traffic": hlo.traffic(text),
            "copies": hlo.copies(text),
        }
        found |= {"launches": hlo.launches(text)} if platform == "cuda" else {}
        found |= compilation.bound(experiment, topology, found)
    log = ["git", "log", "-1", "--format=%cs %h"]
    code = subprocess.run(log, capture_output=True, text=True, check=True).stdout.strip()
    return found | {
        "program": digest,
        "code": code,
        "batch": config.data.batch_size,
        "seconds_to_compile": round(time.monotonic() - started),
    }


def row(case: Case, found: dict[str, Any]) -> dict[str, str]:
    """A row of the table, by column."""
    begin = case._asdict() | {
        "batch": str(found["batch"]),
        "memory, GiB": f"{found['memory'] / GIB:.2f}",
    }
    if "bound" not in found:
        return begin | {"GFLOP": "does not fit"}
    hosts, _, devices = case.topology.partition(":")[2].rpartition("x")
    of_host = found["images_per_second"] / (
        int(hosts or 1) * (int(devices) / 4 if "v5e" in case.topology else 1)
    )
    sums = {
        name.removeprefix("all-reduce "): each
        for name, each in found["collectives"].items()
        if name.startswith("all-reduce")
    }
    shown = begin | {
        "GFLOP": f"{found['flops'] / 1e9:,.0f}",
        "traffic, GiB": f"{found['traffic'] / GIB:.1f}",
        "all-reduce, MiB": f"{sum(c['bytes'] for c in sums.values()) / 2**20:.1f}",
        "by type": ", ".join(f"{c['count']} {kind}" for kind, c in sums.items()),
        "copies, GiB": f"{found['copies']['bytes'] / GIB:.2f}",
    }
    if launches := found.get("launches"):
        count, whole = sum(launches["kinds"].values()), launches["with convolutions"]
        shown["launches"] = str(count)
        shown["alone"] = str(count - launches["in graphs"])
        shown["with convolutions in graphs"] = str(count - whole["in graphs"])
    return shown | {
        "at least, ms": f"{1000 * found['bound']['seconds']:.2f}",
        "by": found["bound"]["by"],
        "utilisation": f"{found['seconds']['compute'] / found['bound']['seconds']:.0%}",
        "images/s, at most": f"{found['images_per_second']:,.0f}",
        "of a host": f"{of_host:,.0f}",
        "its cores": str(math.ceil(of_host / CORE)),
    }


def tables(stored: dict[str, Any]) -> str:
    """A table for each state of the code that compiled a row, the newest first, with the columns
    that one of its rows has."""
    by_code: dict[str, list[dict[str, str]]] = {}
    for case in cases():
        if found := stored.get(str(case)):
            by_code.setdefault(found["code"], []).append(row(case, found))
    lines = []
    for code, rows in sorted(by_code.items(), reverse=True):
        head = list(max(rows, key=len))
        cells = (
            head,
            ["---"] * len(head),
            *([each.get(name, "") for name in head] for each in rows),
        )
        lines += [f"Code of {code}:", "", *(f"| {' | '.join(each)} |" for each in cells), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="compile only cases that contain this text")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/ACCELERATORS.md"))
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    kept = Path(".cache/accelerators.json")
    kept.parent.mkdir(exist_ok=True)
    stored = json.loads(kept.read_text()) if kept.exists() else {}
    for case in cases():
        if options.only not in str(case):
            continue
        try:
            stored[str(case)] = facts(case, stored)
        except ConfigError as error:  # the wheels of this platform are in another environment
            print(f"{case}: {error}", flush=True)
            continue
        files.write_json(kept, stored)
        print(f"{case}: {stored[str(case)]['seconds_to_compile']} s", flush=True)
        text = (
            options.output.read_text()
            if options.output.exists()
            else "# Accelerators\n\n<!-- table -->\n"
        )
        before, _, _ = text.partition("<!-- table -->")
        options.output.write_text(f"{before}<!-- table -->\n\n{tables(stored)}")


if __name__ == "__main__":
    main()
