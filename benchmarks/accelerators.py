"""Training steps compiled for GPUs and TPUs that are not there: memory, collectives and the bound
of a step's time.

    python -m benchmarks.accelerators [--only=cub_hist] [--output=benchmarks/ACCELERATORS.md]

Needs the wheels of requirements-cuda.txt or requirements-tpu.txt; run it once in an environment
with each. A program is
compiled once: its facts are kept in a file beside the output, under a digest of its StableHLO, so
the command continues where it was stopped. A step takes half a minute for an H100, up to ten
minutes for a v5e.
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

from dml_jax import files
from dml_jax.config import files as config_files
from dml_jax.errors import ConfigError
from dml_jax.lab import compilation
from tests.papers import deleted

GIB = 2**30
CUB = (
    "cub_hist",
    "cub_mpn",
    "cub_crt",
    "cub_diva",
    "cub_vit:proxy_anchor-vit_small",
    "cub_vit:proxy_anchor-dinov2_vitb14",
)
SOP = ("sop_hist", "sop_mpn", "sop_crt", "sop_diva")
HEAD = (
    "configuration",
    "precision",
    "devices",
    "batch",
    "memory, GiB",
    "activations",
    "GFLOP",
    "traffic, GiB",
    "all-reduce, MiB",
    "by type",
    "copies, GiB",
    "launches",
    "alone",
    "at least, ms",
    "by",
    "utilisation",
    "images/s, at most",
    "of a host",
    "its cores",
)

CORE = 307  # images/s that a core decodes and crops (benchmarks/input.py, original files)


class Case(NamedTuple):
    """A configuration, its precision and topology; batches are the papers' unless the devices do
    not divide them.

    "…@N" has N training classes, whose table is spread over the devices.
    """

    config: str
    precision: str
    topology: str


def cases() -> Iterator[Case]:
    """The rows of the table, without those of deleted papers."""
    return (case for case in _cases() if not deleted(case.config))


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
    for classes in (10**6, 10**7):
        for topology in ("h100:1", "h100:8", "h100:4x8", "v5e:4x4"):
            yield Case(f"sop_baseline:normalized_softmax@{classes}", "bfloat16", topology)


def facts(case: Case, stored: dict[str, Any]) -> dict[str, Any]:
    """The facts of the training step, compiled unless its program is among the stored ones."""
    topology = compilation.find_topology(case.topology)
    name, _, classes = case.config.partition("@")
    file, _, variant = name.partition(":")
    path = f"configs/{file}.py" + (f":{variant}" if variant else "")
    overrides = {"train.precision": case.precision} | (
        {"train.shard_classes": "true"} if classes else {}
    )
    config = config_files.resolved(path, overrides)
    size, devices = config.data.batch_size, topology.mesh.size
    if size % devices:  # the next multiple that holds as many images of each class
        step = config.data.images_per_class * devices
        overrides["data.batch_size"] = str(-(-size // step) * step)
        config = config_files.resolved(path, overrides)
    experiment = compilation.describe(config, topology, int(classes or 0))
    lower = next(iter(compilation.programs_of(experiment)))[1]
    digest = hashlib.sha256(f"{case} {jax.__version__}\n{lower().as_text()}".encode()).hexdigest()
    if (known := stored.get(str(case), {})).get("program") == digest:
        return known
    started = time.monotonic()
    found = compilation.compiled(lower, topology)
    found |= compilation.bound(experiment, topology, found) if "traffic" in found else {}
    seconds = round(time.monotonic() - started)
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return found | {
        "program": digest,
        "commit": git.stdout.strip(),
        "batch": config.data.batch_size,
        "seconds_to_compile": seconds,
    }


def row(case: Case, found: dict[str, Any]) -> list[str]:
    """A row of the table."""
    begin = [
        case.config,
        case.precision,
        case.topology,
        str(found["batch"]),
        f"{found['memory']['needed'] / GIB:.2f}",
    ]
    if "bound" not in found:
        return [*begin, "does not fit", *[""] * (len(HEAD) - len(begin) - 1)]
    hosts, _, devices = case.topology.partition(":")[2].rpartition("x")
    of_host = found["images_per_second"] / (
        int(hosts or 1) * (int(devices) / 4 if "v5e" in case.topology else 1)
    )
    launches = found.get("launches")
    launched = sum(launches["kinds"].values()) if launches else 0
    sums = [c for c in found["collectives"] if c["operation"] == "all-reduce"]
    return [
        *begin,
        f"{found['memory_by_kind']['activations'] / GIB:.2f}",
        f"{found['flops'] / 1e9:,.0f}",
        f"{found['traffic'] / GIB:.1f}",
        f"{sum(c['bytes'] for c in sums) / 2**20:.1f}",
        ", ".join(f"{c['count']} {c['type']}" for c in sums if c["bytes"] > 2**20),
        f"{found['copies']['bytes'] / GIB:.2f}",
        *map(str, (launched, launched - launches["in graphs"]) if launches else ("", "")),
        f"{1000 * found['bound']['seconds']:.2f}",
        found["bound"]["by"],
        f"{found['utilisation']:.0%}",
        f"{found['images_per_second']:,.0f}",
        f"{of_host:,.0f}",
        str(math.ceil(of_host / CORE)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="compile only cases that contain this text")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/ACCELERATORS.md"))
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    kept = options.output.with_suffix(".json")
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
        rows = [row(each, stored[str(each)]) for each in cases() if str(each) in stored]
        table = [f"| {' | '.join(cells)} |" for cells in (HEAD, ["---"] * len(HEAD), *rows)]
        text = (
            options.output.read_text()
            if options.output.exists()
            else "# Accelerators\n\n<!-- table -->\n"
        )
        before, _, _ = text.partition("<!-- table -->")
        options.output.write_text(f"{before}<!-- table -->\n\n" + "\n".join(table) + "\n")


if __name__ == "__main__":
    main()
