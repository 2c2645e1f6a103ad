"""Predicts how training scales to thousands of devices, from compiled programs; nothing is measured.

    python -m benchmarks.scaling

The training step of ResNet-50 at 224² with frozen batch norms is compiled for 2, 4 and 8 devices. What the devices
exchange is read from the program for eight, as bytes times a power of the batch size, and must be exactly what the
programs for two and four contain. From it and from the FLOPs of the step follow

    time = FLOPs / (n × rate) + (2 × all-reduced + gathered bytes) × (n - 1) / n / bandwidth

on n devices: nothing overlaps, which is pessimistic, and messages have no latency, which is optimistic for large n.
"""

import sys

from dml_jax.train.records.meter import PEAK_RATES

from benchmarks import collectives, memory  # the latter sets up eight virtual devices
from dml_jax.backbones import convolution, resnet
from dml_jax.methods import baseline, hist
from dml_jax.methods.contract import Method, TrainingSet

SIDE, DIM, DATA = 224, 512, TrainingSet(classes=100, images=5864)  # CUB
ROWS = 61  # images of each device in the compiled programs, see `collectives.growth`
EACH, WHOLE = 64, 4096  # images of a device where the batch grows with the devices, and of a batch that does not
DEVICES = (1, 8, 64, 512, 4096)
UTILISATION = 0.4  # of the peak rate, while a device computes
# Peak FLOP/s, and bytes/s that a device sends: half of NVIDIA's 900 GB/s for both directions; the six links of a chip
# (4,800 Gb/s, cloud.google.com/tpu/docs/v5p); a network card of 400 Gb/s for each GPU.
LINKS = {
    "H200, NVLink": (PEAK_RATES["NVIDIA H200"], 450e9),
    "TPU v5p, ICI": (PEAK_RATES["TPU v5"], 600e9),
    "H200, 400 Gb/s": (PEAK_RATES["NVIDIA H200"], 50e9),
}


def methods() -> dict[str, Method]:
    """The methods by name."""
    body = resnet.build(resnet.Config(freeze_bn=True))
    return {
        "HIST": hist.build(hist.Config(embedding_dim=DIM, hidden_dim=DIM), body, DATA),
        "Proxy-Anchor": baseline.build(baseline.make_config(loss="proxy_anchor", embedding_dim=DIM), body, DATA),
    }


def exchanged(method: Method) -> dict[tuple[str, int], float]:
    """See `collectives.growth`; checks that it foretells smaller programs, and prints what they contain."""
    terms: dict[tuple[str, int], float] = {}
    for devices in (8, 4, 2):
        mesh = memory.first_devices(devices)
        program = memory.lowered(method, memory.images(devices * ROWS, SIDE, mesh), mesh).compile()
        found = collectives.collectives(program.as_text())
        terms = terms or collectives.growth(found, ROWS, devices)
        for kind, predicted in collectives.total(terms, devices * ROWS).items():
            contained = sum(one.bytes for one in found if one.kind == kind)
            print(f"| {devices} | {devices * ROWS} | {kind} | {predicted:,.0f} | {contained:,} |", flush=True)
            if contained != predicted:
                sys.exit(f"on {devices} devices, the program does not contain what that on eight foretells")
    return terms


def flops(method: Method, batch: int) -> float:
    """Of a step, counted by XLA before optimisation."""
    mesh = memory.first_devices(1)
    return float(memory.lowered(method, memory.images(batch, SIDE, mesh), mesh).cost_analysis()["flops"])


def table(name: str, method: Method, terms: dict[tuple[str, int], float], *, weak: bool) -> None:
    """Prints a line for each number of devices."""
    kind = f"{EACH} images on each device" if weak else f"{WHOLE:,} images on all devices together"
    print(f"\n| devices: {name}, {kind} | TFLOP each | all-reduce, MB | other, MB | {' | '.join(LINKS)} |")
    print(f"|--:|--:|--:|--:|{'--:|' * len(LINKS)}")
    fastest = dict.fromkeys(LINKS, 0.0)  # images/s of one device
    for devices in DEVICES:
        batch = EACH * devices if weak else WHOLE
        work = flops(method, batch) / devices
        sizes = collectives.total(terms, batch) if devices > 1 else {}
        cells = []
        for link, (peak, bandwidth) in LINKS.items():
            time = work / (UTILISATION * peak) + collectives.seconds(sizes, devices, bandwidth)
            rate = batch / devices / time
            fastest[link] = fastest[link] or rate
            cells.append(f"{rate / fastest[link]:.0%}")
        reduced = sizes.get("all-reduce", 0)
        other = sum(sizes.values()) - reduced
        print(
            f"| {devices:,} | {work / 1e12:.3g} | {reduced / 1e6:,.1f} | {other / 1e6:,.1f} | {' | '.join(cells)} |",
            flush=True,
        )


def main() -> None:
    """Prints the check and, for each method, weak and strong scaling."""
    with convolution.plain():  # the form that GPUs and TPUs compile
        for name, method in methods().items():
            print(f"\n| devices: {name} | images | collective | bytes, predicted | bytes, compiled |")
            print("|--:|--:|---|--:|--:|")
            terms = exchanged(method)
            table(name, method, terms, weak=True)
            table(name, method, terms, weak=False)


if __name__ == "__main__":
    main()
