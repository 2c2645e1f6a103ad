"""Options of the evaluation."""

from typing import Annotated, Literal

from dml_jax.options.fields import AtLeastTwo, NonEmpty, Positive, PositiveInt, require, section

# Batches for test-time refinement: the method's own, chunks of nearest neighbours, or drawn from clusters.
Refine = Literal["reciprocal", "neighbors", "kmeans", "ward", "spectral", "birch", "dbscan", "optics"]


@section
class Evaluation:
    """How embeddings are evaluated."""

    protocol: Literal["clean", "paper"] = "clean"  # excludes the query by its index, or the first neighbour (authors)
    ks: Annotated[tuple[PositiveInt, ...], NonEmpty] = (1, 2, 4, 8)  # of Recall@K
    full_ranking: bool = False  # also MAP over the whole ranking and precision@K; slower with large classes
    batch_size: PositiveInt = 256  # images embedded at once
    cluster: bool = True  # computes NMI with k-means at the end; slow with many thousand classes
    nmi_average: Literal["arithmetic", "geometric"] = "arithmetic"  # of the entropies in NMI; geometric in HIST's code
    refine: tuple[Refine, ...] = ()  # also evaluates the method's test-time refinement in these batches (MPN)
    refine_clusters: AtLeastTwo = 900  # number of clusters for "kmeans", "ward", "spectral" and "birch"
    refine_eps: Positive = 0.9  # largest distance of neighbours for "dbscan" and "optics", between unit embeddings
    refine_min_samples: AtLeastTwo = 5  # neighbours of a core point for the same two
    controls: bool = False  # also evaluates raw pixels and the untrained network; for small images

    def __post_init__(self) -> None:
        require(1 in self.ks, "ks", self.ks, "must contain 1: models are selected and reported by Recall@1")
        require(len(set(self.refine)) == len(self.refine), "refine", self.refine, "must not contain a name twice")
