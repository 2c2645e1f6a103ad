"""Options of the losses that a baseline can be trained with; the defaults are those of the papers or their code."""

from typing import Annotated, Literal

from dml_jax.config.fields import Fraction, NonEmpty, NonNegative, Positive, PositiveInt, require, section

Mining = Literal["random", "semi_hard", "hard", "distance_weighted"]


@section
class CrossEntropy:
    smoothing: Fraction = 0.0  # of the labels


@section
class NormalizedSoftmax:
    temperature: Positive = 0.05  # divides the cosines
    smoothing: Fraction = 0.0  # of the labels


@section
class ArcFace:
    margin: NonNegative = 0.5  # radians
    scale: Positive = 64.0  # of the cosines


@section
class SubCenterArcFace(ArcFace):
    centers: PositiveInt = 3  # per class


@section
class CosFace:
    margin: NonNegative = 0.35  # in cosine
    scale: Positive = 64.0  # of the cosines


@section
class ProxyNCA:
    scale: Positive = 3.0  # length of embeddings and proxies


@section
class ProxyNCAPP:
    temperature: Positive = 1 / 9  # divides the squared distances


@section
class ProxyAnchor:
    margin: NonNegative = 0.1  # delta, in cosine
    alpha: Positive = 32.0  # steepness


@section
class SoftTriple:
    centers: PositiveInt = 10  # per class
    scale: Positive = 20.0  # lambda
    gamma: Positive = 0.1  # temperature of the weights of a class's centers
    margin: NonNegative = 0.01  # delta
    spread: NonNegative = 0.2  # tau, weight of the regulariser


@section
class Contrastive:
    positive_margin: NonNegative = 0.0  # closer positive pairs have no loss
    negative_margin: NonNegative = 1.0  # more distant negative pairs have no loss
    squared: bool = False  # half the squared hinges, as first published
    average: Literal["all", "active"] = "active"  # over all pairs of a kind, or those with a positive hinge


@section
class Triplet:
    margin: NonNegative = 0.2  # by which the positive must be closer
    squared: bool = True  # compare squared distances
    mining: Mining = "semi_hard"  # how negatives are chosen


@section
class Margin:
    margin: NonNegative = 0.2  # alpha
    beta: NonNegative = 1.2  # initial boundary of every class
    nu: NonNegative = 0.0  # weight of the boundaries
    divisor: Literal["triplets", "pairs"] = "triplets"  # active ones; pairs as in pytorch-metric-learning
    mining: Mining = "distance_weighted"  # how negatives are chosen


@section
class NPair:
    l2: NonNegative = 0.002  # weight of the mean squared length of the embeddings, which are not normalised


@section
class LiftedStructure:
    margin: NonNegative = 1.0  # alpha
    normalize: bool = True  # unit embeddings; the paper uses them as they are


@section
class MultiSimilarity:
    """The defaults are those of the authors' repository."""

    alpha: Positive = 2.0  # steepness for positive pairs
    beta: Positive = 40.0  # steepness for negative pairs; the paper: 50
    base: float = 0.5  # lambda, the similarity from which pairs are weighted; the paper: 1
    epsilon: NonNegative = 0.1  # margin of the mining
    mining: bool = True  # False: every pair counts
    copies: Literal["drop", "keep"] = "drop"  # positive pairs of similarity 1
    divisor: Literal["batch", "active"] = "batch"  # mean over all anchors, or over those with a pair left


@section
class Circle:
    margin: NonNegative = 0.4  # m; 0.25 for face recognition
    gamma: Positive = 80.0  # scale; 256 for face recognition


@section
class SupCon:
    temperature: Positive = 0.1  # divides the cosines


@section
class SmoothAP:
    temperature: Positive = 0.01  # of the ranks, in cosine
    rank_query: bool = False  # each query is a positive of itself, as in the authors' code


@section
class RecallAtK:
    ks: Annotated[tuple[PositiveInt, ...], NonEmpty] = (1, 2, 4, 8, 16)  # of the recalls that are averaged
    k_temperatures: tuple[Positive, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)  # in ranks, one for each k
    temperature: Positive = 0.01  # of the ranks, in cosine
    rank_query: bool = False  # each query is a candidate of its own ranking, as in the authors' code

    def __post_init__(self) -> None:
        same = len(self.k_temperatures) == len(self.ks)
        require(same, "k_temperatures", self.k_temperatures, f"give one for each of ks={self.ks}")


# The losses that train a classifier of the training classes.
CLASSIFIERS = ("cross_entropy", "normalized_softmax", "arcface", "subcenter_arcface", "cosface")
# The losses that compare pairs of embeddings, and so can compare a batch with a memory of past ones.
PAIR_LOSSES = (
    "contrastive", "triplet", "margin", "n_pair", "lifted_structure", "multi_similarity", "circle", "sup_con",
    "smooth_ap", "recall_at_k",
)  # fmt: skip
# By the name of the loss.
OPTIONS: dict[str, type] = {
    "cross_entropy": CrossEntropy,
    "normalized_softmax": NormalizedSoftmax,
    "arcface": ArcFace,
    "subcenter_arcface": SubCenterArcFace,
    "cosface": CosFace,
    "proxy_nca": ProxyNCA,
    "proxy_nca_pp": ProxyNCAPP,
    "proxy_anchor": ProxyAnchor,
    "soft_triple": SoftTriple,
    "contrastive": Contrastive,
    "triplet": Triplet,
    "margin": Margin,
    "n_pair": NPair,
    "lifted_structure": LiftedStructure,
    "multi_similarity": MultiSimilarity,
    "circle": Circle,
    "sup_con": SupCon,
    "smooth_ap": SmoothAP,
    "recall_at_k": RecallAtK,
}
