"""Options of the baselines' losses, a section each; defaults are those of the papers or of their authors' code."""

from dataclasses import dataclass
from typing import Literal

PAIR_LOSSES = ("contrastive", "triplet", "margin", "n_pair", "lifted_structure", "multi_similarity")
Loss = Literal[
    "cross_entropy", "normalized_softmax", "arcface", "cosface", "proxy_nca", "proxy_nca_pp", "proxy_anchor",
    "soft_triple", "contrastive", "triplet", "margin", "n_pair", "lifted_structure", "multi_similarity",
]  # fmt: skip
Mining = Literal["random", "semi_hard", "hard", "distance_weighted"]


@dataclass(frozen=True)
class CrossEntropy:
    smoothing: float = 0.0  # of the labels


@dataclass(frozen=True)
class NormalizedSoftmax:
    temperature: float = 0.05
    smoothing: float = 0.0


@dataclass(frozen=True)
class ArcFace:
    margin: float = 0.5  # radians
    scale: float = 64.0


@dataclass(frozen=True)
class CosFace:
    margin: float = 0.35
    scale: float = 64.0


@dataclass(frozen=True)
class ProxyNCA:
    scale: float = 3.0  # length of embeddings and proxies


@dataclass(frozen=True)
class ProxyNCAPP:
    temperature: float = 1 / 9


@dataclass(frozen=True)
class ProxyAnchor:
    margin: float = 0.1
    alpha: float = 32.0


@dataclass(frozen=True)
class SoftTriple:
    centers: int = 10  # for each class
    scale: float = 20.0  # lambda
    gamma: float = 0.1
    margin: float = 0.01  # delta
    spread: float = 0.2  # tau, weight of the regularizer


@dataclass(frozen=True)
class Contrastive:
    positive_margin: float = 0.0
    negative_margin: float = 1.0
    squared: bool = False
    average: Literal["all", "active"] = "active"  # pairs of each kind that the mean is over


@dataclass(frozen=True)
class Triplet:
    margin: float = 0.2
    squared: bool = True  # compare squared distances
    mining: Mining = "semi_hard"


@dataclass(frozen=True)
class Margin:
    margin: float = 0.2  # alpha
    beta: float = 1.2  # first value of the boundary of each class
    nu: float = 0.0  # weight of the boundaries
    mining: Mining = "distance_weighted"


@dataclass(frozen=True)
class NPair:
    l2: float = 0.002  # weight of the mean squared length of the embeddings, which are not normalised


@dataclass(frozen=True)
class LiftedStructure:
    margin: float = 1.0
    normalize: bool = True  # unit embeddings; the paper has raw ones
