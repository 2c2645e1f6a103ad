"""Retrieval and k-means compared with matrix products, NumPy, scikit-learn, pytorch-metric-learning
and faiss.

All use the same threads and the same float32 rows; ratios are between interleaved calls. The
products are all similarities X X' in blocks of rows; an exact ranking of all rows by all rows needs
at least half of them.

    python -m benchmarks.evaluation [--case=cub|sop|large|kmeans_cub|kmeans_sop] [--rows=N]
    [--order=shuffled]
"""

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import timing
from dml_jax.evaluation import kmeans, metrics

Call = Callable[[], object]

BLOCK = 1024
KS = (1, 10, 100, 1000)


class Case(NamedTuple):
    """Sizes of a published test split.

    Attributes:
      rows: N.
      width: D.
      classes: C.
      smallest: minimum number of rows per class.
      largest: maximum number of rows per class.
      spread: standard deviation of the rows of a class around their mean; the means have standard
        deviation 1.
    """

    rows: int
    width: int
    classes: int
    smallest: int
    largest: int
    spread: float


CASES = {
    "cub": Case(5_924, 512, 100, 41, 60, 3.2),
    "sop": Case(60_502, 512, 11_316, 2, 12, 2.0),
    "large": Case(200_000, 128, 2_000, 80, 120, 1.8),
}


def sample(
    case: Case, rows: int | None, shuffled: bool, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows [N, D] around class means, with the Recall@1 of a trained model (about 0.7), and
    labels [N]."""
    rng = np.random.default_rng(seed)
    count = rows or case.rows
    classes = max(2, case.classes * count // case.rows)
    # Every class has at least `smallest` rows; the others are assigned at random, up to `largest`
    # per class.
    vacancies = np.repeat(np.arange(classes), case.largest - case.smallest)
    extra = rng.permutation(vacancies)[: count - classes * case.smallest]
    labels = np.sort(np.concatenate([np.repeat(np.arange(classes), case.smallest), extra]))
    if shuffled:
        labels = rng.permutation(labels)
    points = rng.normal(size=(classes, case.width)).astype(np.float32)[labels]
    points += case.spread * rng.standard_normal(points.shape, dtype=np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points, labels


def jax_product(points: np.ndarray) -> Call:
    """Every similarity once."""
    gallery = jnp.asarray(points)
    block = jax.jit(lambda rows, gallery: jnp.matmul(rows, gallery.T, precision="highest"))

    def call() -> None:
        for i in range(0, len(points), BLOCK):
            block(gallery[i : i + BLOCK], gallery).block_until_ready()

    return call


def numpy_product(points: np.ndarray) -> Call:
    def call() -> None:
        for i in range(0, len(points), BLOCK):
            points[i : i + BLOCK] @ points.T

    return call


def pytorch_metric_learning(points: np.ndarray, labels: np.ndarray) -> Call:
    """Precision@1, MAP@R and R-precision of pytorch-metric-learning.

    It searches with faiss on a CPU, and on a GPU with torch, in blocks.
    """
    import torch
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN

    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    options: dict[str, Any] = {"include": names, "k": "max_bin_count"}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        options |= {"device": device, "knn_func": CustomKNN(CosineSimilarity(), batch_size=BLOCK)}
    calculator = AccuracyCalculator(**options)
    tensors = torch.from_numpy(points).to(device), torch.from_numpy(labels).to(device)
    return lambda: calculator.get_accuracy(*tensors)


def kmeans_calls(points: np.ndarray, k: int, iterations: int) -> dict[str, Call | None]:
    """k-means from k random rows: this library, its lower bound, and other libraries (None if not
    installed)."""
    calls: dict[str, Call | None] = {}
    calls["dml_jax"] = lambda: kmeans.fit(points, k, init="random", max_iterations=iterations)
    x, centers = jnp.asarray(points), jnp.asarray(points[:k])
    block = jax.jit(lambda rows, centers: jnp.matmul(rows, centers.T, precision="highest"))

    def products() -> None:
        for _ in range(iterations + 1):
            for i in range(0, len(points), BLOCK * 4):
                block(x[i : i + BLOCK * 4], centers).block_until_ready()

    def by_faiss() -> Call:
        import faiss

        def call() -> object:
            most = {"max_points_per_centroid": len(points)}
            clustering = faiss.Kmeans(points.shape[1], k, niter=iterations, seed=0, **most)
            clustering.train(points)
            return clustering.index.search(points, 1)

        return call

    def by_sklearn() -> Call:
        from sklearn.cluster import KMeans

        options: Any = {"init": "random", "n_init": 1, "tol": 0, "random_state": 0}
        return lambda: KMeans(k, max_iter=iterations, **options).fit(points)

    peers = {"faiss": timing.installed(by_faiss), "scikit-learn": timing.installed(by_sklearn)}
    return {**calls, "JAX products": products, **peers}


def measure(calls: dict[str, Call | None], repeats: int) -> dict[str, dict[str, Any]]:
    """Times interleaved calls (A B C A B C …), each as in `timing`; skips calls that are None.

    Returns:
      By name: "each" (seconds of every call), "seconds" (median), "ratio" to the first call (median
      over the repeats) and "processor_ratio" (the same for CPU seconds).
    """
    installed = {name: call for name, call in calls.items() if call is not None}
    warm_up = {name: timing.seconds(call) for name, call in installed.items()}
    wall: dict[str, list[float]] = {name: [] for name in installed}
    processor: dict[str, list[float]] = {name: [] for name in installed}
    for _ in range(repeats):
        for name, call in installed.items():
            time.sleep(timing.REST)
            if warm_up[name] < 1:
                call()
            wall_start, processor_start = time.perf_counter(), time.process_time()
            call()
            wall[name].append(time.perf_counter() - wall_start)
            processor[name].append(time.process_time() - processor_start)
    first = next(iter(installed))
    return {
        name: {
            "each": wall[name],
            "seconds": float(np.median(wall[name])),
            "ratio": float(np.median(np.divide(wall[name], wall[first]))),
            "processor_ratio": float(np.median(np.divide(processor[name], processor[first]))),
        }
        for name in installed
    }


def peak_memory() -> float:
    """Peak resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def retrieval(name: str, rows: int | None, repeats: int, shuffled: bool) -> dict[str, Any]:
    points, labels = sample(CASES[name], rows, shuffled)
    ks = tuple(k for k in KS if k < len(points))
    before = peak_memory()
    scores = metrics.retrieval(points, labels, ks=ks)
    memory = peak_memory() - before
    peer = timing.installed(pytorch_metric_learning, points, labels)
    calls: dict[str, Call | None] = {
        "JAX product": jax_product(points),
        "dml_jax, all metrics": lambda: metrics.retrieval(points, labels, ks=ks),
        "NumPy product": numpy_product(points),
        f"pytorch-metric-learning + {'faiss' if jax.default_backend() == 'cpu' else 'torch'}": peer,
    }
    return {
        "case": name,
        "rows": len(points),
        "width": points.shape[1],
        "classes": len(np.unique(labels)),
        "order": "shuffled" if shuffled else "grouped",
        "recall@1": scores["recall@1"],
        "peak_mib_beyond_input": round(memory),
        "calls": measure(calls, repeats),
    }


def clustering(name: str, rows: int | None, repeats: int) -> dict[str, Any]:
    points, labels = sample(CASES[name], rows, True)
    k, iterations = len(np.unique(labels)), 20 if name == "cub" else 2
    calls = kmeans_calls(points, k, iterations)
    if name != "cub":
        calls.pop("scikit-learn")
    return {
        "case": f"k-means {name}",
        "rows": len(points),
        "width": points.shape[1],
        "classes": k,
        "iterations": iterations,
        "calls": measure(
            dict(sorted(calls.items(), key=lambda item: item[0] != "JAX products")), repeats
        ),
    }


def table(result: dict[str, Any]) -> str:
    """One case as a Markdown table."""
    heading = ", ".join(f"{key} {value}" for key, value in result.items() if key != "calls")
    lines = [heading, "", "| | s | ratio | CPU-time ratio |", "|---|---|---|---|"]
    for name, row in result["calls"].items():
        lines.append(
            f"| {name} | {row['seconds']:.3f} | {row['ratio']:.2f} | {row['processor_ratio']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def rows() -> Iterator[timing.Row]:
    """Every case with the sizes of CUB and SOP: one `timing.summary` for each peer."""
    for name, repeats in (("cub", 9), ("sop", 3)):
        for result in (retrieval(name, None, repeats, False), clustering(name, None, repeats)):
            calls = result["calls"]
            ours = next(each for each in calls if each.startswith("dml_jax"))
            for peer in sorted(calls.keys() - {ours}):
                seconds = np.array(calls[ours]["each"]), np.array(calls[peer]["each"])
                yield timing.summary(f"{result['case']}, {peer}", *seconds)


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cases = ("cub", "sop", "large", "kmeans_cub", "kmeans_sop")
    flags.add_argument(
        "--case", choices=cases, action="append", help="may be repeated; default: all cases"
    )
    flags.add_argument(
        "--rows", type=int, help="number of rows; default: those of the published test split"
    )
    flags.add_argument("--repeats", type=int, default=5, help="timed calls of each implementation")
    flags.add_argument(
        "--order", choices=("grouped", "shuffled"), default="grouped", help="order of the rows"
    )
    flags.add_argument("--json", help="output file")
    options = flags.parse_args()
    results = []
    for case in options.case or cases:
        if case.startswith("kmeans_"):
            result = clustering(case.removeprefix("kmeans_"), options.rows, options.repeats)
        else:
            result = retrieval(case, options.rows, options.repeats, options.order == "shuffled")
        results.append(result)
        print(table(result), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
