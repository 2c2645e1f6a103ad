"""Options of CRT."""

from typing import Literal

from dml_jax.options.fields import NonNegative, PositiveInt, require, section
from dml_jax.options.methods.losses import MultiSimilarity

GROUPS = ("backbone", "prototypes", "embedding")  # of parameters


@section
class Config:
    """Options of CRT; the defaults are those of CUB and Cars196. Pairs hold one value per branch."""

    name: str = "crt"
    embedding_dims: tuple[PositiveInt, PositiveInt] = (128, 1024)  # d1, d2
    prototypes: tuple[PositiveInt, PositiveInt] = (64, 64)  # K1, K2
    hidden_dim: PositiveInt = 512  # hidden width of Gamma; not given in the paper
    sharing: Literal["shared", "separate"] = "shared"  # whether branch 2 uses branch 1's prototypes and hidden layers
    gamma: Literal["per_prototype", "single"] = "per_prototype"  # single: one Gamma for all prototypes (Table 7)
    transform: Literal["residual", "average"] = "residual"  # average: average-pooled features (Table 6, "-CRT")
    lambda1: tuple[NonNegative, NonNegative] = (1.0, 0.1)  # of the multi-similarity losses; (1.0, 0.9) on SOP, In-Shop
    lambda2: NonNegative = 0.9  # weight of the consistency loss
    w_div: NonNegative = 1.0  # weight of the diversity loss of each set of prototypes
    consistency: Literal["mean", "sum"] = "mean"  # over the N^2 entries; the sum as printed
    tested_branch: Literal["branch1", "branch2"] = "branch1"  # whose embedding is tested
    multi_similarity: MultiSimilarity = MultiSimilarity()

    def __post_init__(self) -> None:
        require(
            self.sharing != "shared" or self.prototypes[0] == self.prototypes[1],
            "prototypes",
            self.prototypes,
            "branches that share prototypes need the same number; make them equal or set sharing=separate",
        )
