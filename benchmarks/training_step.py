"""Training steps of configurations on one accelerator: time, images/s and memory, compared with the
bound of the program.

The step is the one that the main command compiles; its bound is that of `--mode=compile`, at the
vendor's peak figures. Configurations with a torch version in `benchmarks/methods` are also compared
with it in the same run, eager and compiled, channels last, with autocast for bfloat16. Images are
on the device as uint8; loading them is not measured. Each case runs in its own process.

    python -m benchmarks.training_step [--cases=cars_hist,bfloat16,32 …] [--steps=50]
    [--torch=eager,compiled]

A case is a configuration, a precision and, if it is not the configuration's own, a batch size.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks import hlo, methods

ROUNDS = 5
KINDS = {"h100": "h100", "v5 lite": "v5e"}  # in JAX's names
NAMES = {"dml_jax": "dml_jax", "eager": "torch", "compiled": "torch.compile"}
Run = Callable[[int], None]  # takes this number of steps and waits for them


def cases() -> tuple[str, ...]:
    """Measured by default: the cases of the methods that are there, and of a transformer."""
    found = (case for each in methods.modules() for case in getattr(each, "TRAINING_CASES", ()))
    return (*found, "cub_vit:proxy_anchor-vit_small,bfloat16")


def peers() -> dict[str, Callable[[str, int, bool], Run]]:
    """By configuration: (precision, batch size, whether it is compiled) -> the same in torch."""
    found = [getattr(each, "TRAINING_PEERS", {}) for each in methods.modules()]
    return {name: peer for each in found for name, peer in each.items()}


def ours(config: str, precision: str, batch: int) -> tuple[Run, dict[str, Any]]:
    """The run, with the batch size and, where the device's peak figures are known, bound and memory
    of its program."""
    import jax

    from dml_jax.config import files
    from dml_jax.lab import compilation
    from dml_jax.methods.contract import Batch
    from dml_jax.train import warm_start
    from dml_jax.train.distributed import device_mesh

    name, _, variant = config.partition(":")
    overrides = {"train.precision": precision} | ({"data.batch_size": str(batch)} if batch else {})
    resolved = files.resolved(f"configs/{name}.py" + (f":{variant}" if variant else ""), overrides)
    experiment = compilation.describe(resolved, device_mesh.make())
    shape = experiment.example_batch()
    size, views = shape.labels.shape[0], shape.images.shape[0]
    labels = (
        jax.numpy.arange(size)
        // resolved.data.images_per_class
        % len(experiment.splits["train"].classes)
    )
    images = jax.random.randint(jax.random.key(1), shape.images.shape, 0, 256, jax.numpy.uint8)
    data, state = (
        Batch(images, labels, jax.numpy.arange(size)),
        warm_start.initial_state(experiment),
    )
    leaves, key = jax.tree.leaves(state), experiment.key
    traced = experiment.jitted_step(state).trace(leaves, data, key)
    lowered = traced.lower()
    program = lowered.compile()
    about: dict[str, Any] = {"images": size * views}
    device = jax.devices()[0].device_kind.lower()
    named = (kind for part, kind in KINDS.items() if part in device)
    if chip := compilation.CHIPS.get(next(named, "")):
        topology = compilation.Topology(device, experiment.mesh, {}, *chip)
        needed, text = compilation.memory(lowered, topology)  # from the cache of compiled programs
        counted = hlo.flops(traced.jaxpr.jaxpr, jax.default_backend().replace("gpu", "cuda"))
        found = compilation.operations(text) | {"traffic": hlo.traffic(text), "flops": counted}
        least = compilation.bound(experiment, topology, found)["bound"]["seconds"]
        about |= {"bound_ms": 1000 * least, "needed_gib": needed / 2**30}

    def run(steps: int) -> None:
        nonlocal leaves
        for _ in range(steps):
            leaves, metrics = program(leaves, data, key)
        assert jax.numpy.isfinite(metrics["loss"])

    return run, about


def measure(
    implementation: str, config: str, precision: str, batch: int, steps: int
) -> dict[str, Any]:
    """Seconds until two steps are done, milliseconds of a step (median and slowest round), and what
    is known of it."""
    peer = peers()[config] if implementation != "dml_jax" else None
    start = time.perf_counter()
    if peer is None:
        run, about = ours(config, precision, batch)
    else:
        size = batch or 32
        run, about = peer(precision, size, implementation == "compiled"), {"images": size}
    run(2)
    ready, rounds = time.perf_counter() - start, []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        run(steps)
        rounds.append(1000 * (time.perf_counter() - begin) / steps)
    return {"start_s": ready, "ms": sorted(rounds)[ROUNDS // 2], "slowest_ms": max(rounds)} | about


def row(implementation: str, case: str, steps: int) -> str:
    """A line of the table, measured by a process of its own."""
    config, precision, batch = (*case.split(","), "0")[:3]
    flags = [f"--measure={implementation},{config},{precision},{batch}", f"--steps={steps}"]
    command = [sys.executable, "-m", "benchmarks.training_step", *flags]
    with tempfile.TemporaryDirectory() as cache:
        variables = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    about = f"| {config} | {precision} | {NAMES[implementation]}"
    if done.returncode:
        return (
            f"{about} | failed: {(done.stderr.strip().splitlines() or ['?'])[-1][:160]} | | | | | |"
        )
    found = json.loads(done.stdout.splitlines()[-1])
    images, ms = found["images"], found["ms"]
    speed = f"{images} | {ms:.2f} ({found['slowest_ms']:.2f}) | {1000 * images / ms:,.0f}"
    bound = f"{found['bound_ms']:.2f} | {found['needed_gib']:.2f}" if "bound_ms" in found else "|"
    return f"{about} | {speed} | {bound} | {found['start_s']:.0f} |"


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--cases", nargs="+", help="configuration,precision[,batch size]")
    flags.add_argument("--torch", default="eager,compiled", help="peers; empty for none")
    flags.add_argument("--steps", type=int, default=50, help=f"of each of {ROUNDS} rounds")
    flags.add_argument("--measure", help=argparse.SUPPRESS)
    options = flags.parse_args()
    if options.measure:
        implementation, config, precision, batch = options.measure.split(",")
        print(json.dumps(measure(implementation, config, precision, int(batch), options.steps)))
        return
    print(
        "| configuration | precision | implementation | images | ms (slowest round) | images/s",
        end=" ",
    )
    print("| bound, ms | GiB | ready, s |\n|---|---|---|--:|--:|--:|--:|--:|--:|")
    for case in options.cases or cases():
        compared = options.torch and case.partition(",")[0] in peers()
        for implementation in ("dml_jax", *(options.torch.split(",") if compared else ())):
            print(row(implementation, case, options.steps), flush=True)


if __name__ == "__main__":
    main()
