"""One training step of ResNet-50 + HIST (Adam, 512 dimensions, 100 classes) on one accelerator: images/s and memory.

Compared in the same run with torch on the same device: eager and compiled, channels last, TF32 convolutions in float32,
autocast for bfloat16. Images are on the device as uint8; loading them is not measured. Each case runs in a separate
process, so that peak memory is per case.

    python -m benchmarks.training_step [--batches=32,128,512] [--dtypes=float32,bfloat16] [--steps=20]
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable

CLASSES, DIM, TAU, ALPHA = 100, 512, 32.0, 0.9
IMPLEMENTATIONS = ("dml_jax", "torch", "torch.compile")
Measured = tuple[Callable[[int], None], Callable[[], int]]


def ours(batch: int, side: int, dtype: str) -> Measured:
    """(run a number of steps and wait for them, peak memory in bytes)."""
    import jax
    import jax.numpy as jnp

    from dml_jax.backbones import resnet
    from dml_jax.config import Group, Train
    from dml_jax.methods import hist
    from dml_jax.methods.contract import Batch, TrainingSet
    from dml_jax.train import optimizers, step

    backbone = resnet.build(resnet.Config(dtype=dtype))  # type: ignore[arg-type]
    config = hist.Config(embedding_dim=DIM, tau=TAU, alpha=ALPHA)
    method = hist.build(config, backbone, TrainingSet(classes=CLASSES, images=batch))
    train = Train(groups={name: Group(learning_rate=1e-4) for name in method.groups}, steps=1000)
    optimizer = optimizers.build(train, method, lambda count: 1.0)
    images = jax.random.randint(jax.random.key(1), (1, batch, side, side, 3), 0, 256, jnp.uint8)
    data = Batch(images, jnp.arange(batch) // 4 % CLASSES, jnp.arange(batch))
    state = step.initial(method, optimizer, jax.random.key(0), data)
    jitted = jax.jit(step.build(method, optimizer), donate_argnums=0)

    def run(steps: int) -> None:
        nonlocal state
        for _ in range(steps):
            state, metrics = jitted(state, data, jax.random.key(2))
        assert jnp.isfinite(metrics["loss"])

    return run, lambda: int((jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))


def theirs(batch: int, side: int, dtype: str, compiled: bool) -> Measured:
    """The same in torch."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from benchmarks.torch_networks import ResNet50, normalise

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    body = ResNet50().to(device, memory_format=torch.channels_last)
    embedding, theta, output = nn.Linear(2048, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, CLASSES)
    layers = nn.ModuleList([embedding, theta, output, nn.BatchNorm1d(DIM)]).to(device)
    means, log_vars = (nn.Parameter(0.1 * torch.randn(CLASSES, DIM, device=device)) for _ in range(2))
    labels = torch.arange(batch, device=device) // 4 % CLASSES
    own = labels[:, None] == labels.unique()[None, :]
    parameters = [*body.parameters(), *layers.parameters(), means, log_vars]
    optimizer = torch.optim.Adam(parameters, 1e-4, fused=device.type == "cuda")
    images = torch.randint(0, 256, (batch, side, side, 3), dtype=torch.uint8, device=device)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            features = body(normalise(images).contiguous(memory_format=torch.channels_last))
        features = features.float()
        x = F.layer_norm(embedding(features.mean((2, 3)) + features.amax((2, 3))), (DIM,))
        e, m, precision = F.normalize(x), F.normalize(means), torch.exp(-F.relu6(log_vars))
        d = (e * e) @ precision.T - 2 * e @ (m * precision).T + (m * m * precision).sum(1)
        near = torch.exp(-ALPHA * d[:, : own.shape[1]])  # the classes of the batch are the first ones
        h = torch.where(own, torch.ones_like(near), near)
        vertex = h.sum(1).rsqrt()[:, None]
        g = (vertex * h / h.sum(0)) @ (vertex * h).T
        hidden = F.leaky_relu(layers[3](g @ theta(x)), 0.1)
        return F.cross_entropy(-TAU * d, labels) + F.cross_entropy(g @ output(hidden), labels)

    objective = torch.compile(loss) if compiled else loss

    def run(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            value = objective()
            value.backward()
            optimizer.step()
        assert torch.isfinite(value).item()

    return run, lambda: torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


def measure(implementation: str, batch: int, side: int, dtype: str, steps: int) -> dict[str, float]:
    """Seconds until the second step is done, images/s of the best and worst of three rounds, peak memory in GB."""
    start = time.perf_counter()
    if implementation == "dml_jax":
        run, memory = ours(batch, side, dtype)
    else:
        run, memory = theirs(batch, side, dtype, compiled=implementation == "torch.compile")
    run(2)
    ready = time.perf_counter() - start
    rounds = []
    for _ in range(3):
        begin = time.perf_counter()
        run(steps)
        rounds.append(batch * steps / (time.perf_counter() - begin))
    return {"start_s": ready, "images_per_s": max(rounds), "slowest": min(rounds), "memory_gb": memory() / 1e9}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--batches", default="32,128,512")
    flags.add_argument("--dtypes", default="float32,bfloat16")
    flags.add_argument("--ways", default=",".join(IMPLEMENTATIONS), help="what to measure")
    flags.add_argument("--side", type=int, default=224)
    flags.add_argument("--steps", type=int, default=20)
    flags.add_argument("--case", help="implementation,dtype,batch: measure this case in this process and print JSON")
    options = flags.parse_args()
    if options.case:
        implementation, dtype, batch = options.case.split(",")
        print(json.dumps(measure(implementation, int(batch), options.side, dtype, options.steps)))
        return
    print("| batch | dtype | implementation | images/s (slowest of 3 rounds) | peak memory, GB | first two steps, s |")
    print("|---|---|---|---|---|---|")
    for batch in options.batches.split(","):
        for dtype in options.dtypes.split(","):
            for implementation in options.ways.split(","):
                case = [sys.executable, "-m", "benchmarks.training_step", f"--case={implementation},{dtype},{batch}"]
                case += [f"--side={options.side}", f"--steps={options.steps}"]
                done = subprocess.run(case, capture_output=True, text=True, check=False)
                if done.returncode:
                    reason = (done.stderr.strip().splitlines() or ["?"])[-1][:80]
                    print(f"| {batch} | {dtype} | {implementation} | failed: {reason} | | |", flush=True)
                    continue
                result = json.loads(done.stdout.splitlines()[-1])
                speed = f"{result['images_per_s']:.0f} ({result['slowest']:.0f})"
                memory, start = f"{result['memory_gb']:.1f}", f"{result['start_s']:.1f}"
                print(f"| {batch} | {dtype} | {implementation} | {speed} | {memory} | {start} |", flush=True)


if __name__ == "__main__":
    main()
