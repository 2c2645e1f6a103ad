"""The table of the README: speed compared with pytorch-metric-learning with faiss, and OML.

    pip install torch pytorch-metric-learning faiss-cpu open-metric-learning
    python -m benchmarks.peers     # writes benchmarks/results/peers.json

All get the same float32 rows and threads; times are medians of interleaved calls. The metrics are
those that all three have: Recall@1, and those of the first R rows of the ranking (MAP@R here and in
pytorch-metric-learning, MAP@k for the largest R in Open Metric Learning). Losses are computed with
their gradients, dml_jax's compiled, and have equal values.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np

from benchmarks import evaluation, tables
from dml_jax import losses
from dml_jax.evaluation import metrics

Calls = dict[str, Callable[[], Any]]
PEERS = ("dml_jax", "PML + faiss", "OML")
BATCH, WIDTH, CLASSES = 128, 512, 32


def retrieval(name: str) -> Calls:
    """All metrics of rows by rows, with the sizes of a published test split."""
    points, labels = evaluation.sample(evaluation.CASES[name], None, shuffled=True)
    calls: Calls = {
        "dml_jax": lambda: metrics.retrieval(points, labels, ks=(1,)),
        "PML + faiss": evaluation.pytorch_metric_learning(points, labels),
    }
    return calls | {"OML": _oml_retrieval(points, labels)}


def _oml_retrieval(points: np.ndarray, labels: np.ndarray) -> Callable[[], Any]:
    import torch
    from oml.interfaces.datasets import IQueryGalleryLabeledDataset
    from oml.metrics import calc_retrieval_metrics_rr
    from oml.retrieval import RetrievalResults

    class Dataset(IQueryGalleryLabeledDataset):  # type: ignore[misc]
        """Every row is a query and in the gallery."""

        def __len__(self) -> int:
            return len(labels)

        def get_labels(self) -> Any:
            return torch.from_numpy(labels)

        def get_query_ids(self) -> Any:
            return torch.arange(len(labels))

        get_gallery_ids = get_query_ids
        extra_data: ClassVar[dict[str, Any]] = {}

        def __getitem__(self, item: int) -> Any:
            raise IndexError(item)

        def visualize(self, item: int, color: Any) -> Any:
            raise IndexError(item)

    rows, most = torch.from_numpy(points), int(np.bincount(labels).max()) - 1

    def call() -> Any:
        found = RetrievalResults.from_embeddings(rows, Dataset(), n_items=most)
        return calc_retrieval_metrics_rr(
            found, cmc_top_k=(1,), precision_top_k=(), map_top_k=(most,), verbose=False
        )

    return call


def triplets() -> Calls:
    """The mean hinge over all triplets of a batch."""
    import torch
    from oml.losses import TripletLossWithMiner
    from oml.miners import AllTripletsMiner
    from pytorch_metric_learning import distances
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.reducers import MeanReducer

    def ours(x: Any, y: Any) -> Any:
        return losses.triplet(x, y, margin=0.2, mining="all", squared=False)

    pml = TripletMarginLoss(
        margin=0.2, reducer=MeanReducer(), distance=distances.LpDistance(normalize_embeddings=True)
    )
    oml = TripletLossWithMiner(margin=0.2, miner=AllTripletsMiner())
    normalized = torch.nn.functional.normalize
    return _loss_calls(ours, {"PML + faiss": pml, "OML": lambda x, y: oml(normalized(x), y)})


def multi_similarity() -> Calls:
    """The multi-similarity loss with its mining."""
    from pytorch_metric_learning.losses import MultiSimilarityLoss
    from pytorch_metric_learning.miners import MultiSimilarityMiner

    def ours(x: Any, y: Any) -> Any:
        return losses.multi_similarity(x, y, beta=50, copies="keep")

    loss, miner = MultiSimilarityLoss(), MultiSimilarityMiner()
    return _loss_calls(ours, {"PML + faiss": lambda x, y: loss(x, y, miner(x, y))})


def _loss_calls(ours: Callable[..., Any], theirs: dict[str, Callable[..., Any]]) -> Calls:
    import torch

    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), BATCH // CLASSES)
    points = rng.normal(size=(CLASSES, WIDTH))[labels] + 2 * rng.normal(size=(BATCH, WIDTH))
    points = points.astype(np.float32)
    compiled = jax.jit(jax.value_and_grad(ours))
    expected = compiled(points, labels)

    def torch_call(loss: Callable[..., Any]) -> Callable[[], Any]:
        y = torch.from_numpy(labels)

        def call() -> Any:
            x = torch.from_numpy(points).requires_grad_()
            value = loss(x, y)
            value.backward()
            return value.detach(), x.grad

        for mine, other in zip(expected, call(), strict=True):
            np.testing.assert_allclose(mine, other.numpy(), rtol=1e-3, atol=1e-6)
        return call

    x, y = jax.numpy.asarray(points), jax.numpy.asarray(labels)
    calls: Calls = {"dml_jax": lambda: jax.block_until_ready(compiled(x, y))}
    return calls | {name: torch_call(loss) for name, loss in theirs.items()}


CASES: dict[str, tuple[Callable[[], Calls], int]] = {
    "retrieval metrics, 5,924 × 512 (CUB)": (lambda: retrieval("cub"), 9),
    "retrieval metrics, 60,502 × 512 (SOP)": (lambda: retrieval("sop"), 2),
    f"triplet loss, all triplets of {BATCH}": (triplets, 30),
    f"multi-similarity loss of {BATCH}": (multi_similarity, 100),
}


def main() -> None:
    rows = []
    for name, (calls, repeats) in CASES.items():
        result = evaluation.measure(dict(calls()), repeats)
        cells = []
        for peer in PEERS:
            if (found := result.get(peer)) is None:
                cells.append("–")
                continue
            seconds, ratio = found["seconds"], found["ratio"]
            text = f"{seconds:.2g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
            cells.append(
                text if peer == PEERS[0] else f"{text} ({ratio:.{1 if ratio < 10 else 0}f} ×)"
            )
        rows.append([name, *cells])
        print(rows[-1], flush=True)
    tables.write("peers", "python -m benchmarks.peers", ["", *PEERS], rows)


if __name__ == "__main__":
    main()
