"""Options of the evaluation."""

from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

from dml_jax.config.data import OF_ANY_SIZE, ON_IMAGES
from dml_jax.config.fields import AtLeastTwo, NonEmpty, NonNegativeInt, Positive, PositiveInt, require, section
from dml_jax.config.needs import Needs, RunRule

# Batches for test-time refinement: the method's own, chunks of nearest neighbours, or drawn from clusters.
Refine = Literal["reciprocal", "neighbors", "kmeans", "ward", "spectral", "birch", "dbscan", "optics"]
FIXED_COUNT = ("kmeans", "ward", "spectral", "birch")  # find a given number of clusters
DENSITY_BASED = ("dbscan", "optics")  # determine the number of clusters, and label outliers as noise


def _refined(kinds: tuple[str, ...]) -> Needs:
    what = f"one of {', '.join(kinds)} in evaluation.refine"
    return Needs(what, lambda c: not set(kinds).isdisjoint(c.evaluation.refine))


BEST = "best"  # instead of the name of a reading
CLUSTERED = Needs("evaluation.cluster", lambda c: c.evaluation.cluster)
FOUND = RunRule(
    "a K exceeds the number of images that a query is compared with, so Recall@K is not computed; give smaller ones",
    lambda c, run: max(c.evaluation.ks) <= run.candidates,
)


@section
class Evaluation:
    """How embeddings are evaluated."""

    KEY: ClassVar = "evaluation"

    protocol: Literal["clean", "paper"] = "clean"  # excludes the query by its index, or the first neighbour (authors)
    ks: Annotated[tuple[PositiveInt, ...], NonEmpty, FOUND] = (1, 2, 4, 8)  # of Recall@K
    # Whether a query without another image of its class is a miss in Recall@K and MRR, or left out.
    lone_queries: Literal["miss", "omit"] = "miss"
    prefixes: tuple[PositiveInt, ...] = ()  # numbers of leading dimensions that are also evaluated alone
    full_ranking: bool = False  # also MAP over the whole ranking and precision@K; slower with large classes
    batch_size: PositiveInt = 256  # images embedded at once
    flip: Annotated[bool, ON_IMAGES] = False  # embeddings are averaged over an image and its mirror image
    # Factors of the size of an image over which its embeddings are averaged.
    scales: Annotated[tuple[Positive, ...], NonEmpty, ON_IMAGES, OF_ANY_SIZE] = (1.0,)
    cluster: bool = True  # computes NMI with k-means at the end; slow with many thousand classes
    # Of the entropies in NMI; geometric in HIST's code.
    nmi_average: Annotated[Literal["arithmetic", "geometric"], CLUSTERED] = "arithmetic"
    # How k-means starts. "auto": up to 1,000 classes k-means++, the best of 10 starts of at most 300 iterations; above,
    # random rows, one start of at most 20 iterations.
    kmeans_init: Annotated[Literal["auto", "k-means++", "random"], CLUSTERED] = "auto"
    kmeans_restarts: Annotated[NonNegativeInt, CLUSTERED] = 0  # starts of k-means; 0: as many as with "auto"
    kmeans_iterations: Annotated[NonNegativeInt, CLUSTERED] = 0  # at most, of each start; 0: as many as with "auto"
    refine: tuple[Refine, ...] = ()  # also evaluates the method's test-time refinement in these batches (MPN)
    # Number of clusters for "kmeans", "ward", "spectral" and "birch".
    refine_clusters: Annotated[AtLeastTwo, _refined(FIXED_COUNT)] = 900
    # Largest distance of neighbours for "dbscan" and "optics", between unit embeddings.
    refine_eps: Annotated[Positive, _refined(DENSITY_BASED)] = 0.9
    # Neighbours of a core point for the same two.
    refine_min_samples: Annotated[AtLeastTwo, _refined(DENSITY_BASED)] = 5
    # Several test-time readings of one model, all evaluated: by name, the options of the method that a reading
    # changes, such as DiVA's weights of the embeddings.
    readings: dict[str, dict[str, Any]] = field(default_factory=dict)
    # The reading that is reported, and by which models are selected: its name, or "best" for the highest Recall@1 at
    # each evaluation.
    reading: Annotated[str, Needs("evaluation.readings", lambda c: c.evaluation.readings)] = BEST
    controls: bool = False  # also evaluates raw pixels and the untrained network; for small images

    def __post_init__(self) -> None:
        require(1 in self.ks, "ks", self.ks, "must contain 1: models are selected and reported by Recall@1")
        known = (BEST, *self.readings)
        require(BEST not in self.readings, "readings", self.readings, f"must not use the name {BEST!r}")
        require(self.reading in known, "reading", self.reading, f"must be one of {', '.join(known)}")
        require(len(set(self.refine)) == len(self.refine), "refine", self.refine, "must not contain a name twice")

    @property
    def kmeans(self) -> dict[str, Any]:
        """Options of `protocol.evaluate`; None for the default of the number of classes."""
        init = None if self.kmeans_init == "auto" else self.kmeans_init
        return {"init": init, "restarts": self.kmeans_restarts or None, "iterations": self.kmeans_iterations or None}
