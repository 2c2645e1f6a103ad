"""Options of CRT."""

from typing import Annotated, Literal

from dml_jax.options.fields import NonNegative, PositiveInt, require, section
from dml_jax.options.methods.losses import MultiSimilarity
from dml_jax.options.needs import Needs, Rule

GROUPS = ("backbone", "prototypes", "embedding")  # of parameters
RESIDUAL = Needs("method.transform='residual'", lambda c: c.method.transform == "residual")
CONSISTENT = Needs("method.lambda2", lambda c: c.method.lambda2 > 0)
TRAINED = Rule(
    "this branch has weight 0 in method.lambda1, so its embedding is not trained by the labels; test the other",
    lambda c: c.method.lambda1[c.method.tested_branch == "branch2"] > 0,
    also=("method.lambda1",),
)


@section
class Config:
    """Options of CRT; the defaults are those of CUB and Cars196. Pairs hold one value per branch."""

    name: str = "crt"
    embedding_dims: tuple[PositiveInt, PositiveInt] = (128, 1024)  # d1, d2
    prototypes: Annotated[tuple[PositiveInt, PositiveInt], RESIDUAL] = (64, 64)  # K1, K2
    hidden_dim: Annotated[PositiveInt, RESIDUAL] = 512  # hidden width of Gamma; not given in the paper
    # Whether branch 2 uses branch 1's prototypes and hidden layers.
    sharing: Annotated[Literal["shared", "separate"], RESIDUAL] = "shared"
    # single: one Gamma for all prototypes (Table 7).
    gamma: Annotated[Literal["per_prototype", "single"], RESIDUAL] = "per_prototype"
    transform: Literal["residual", "average"] = "residual"  # average: average-pooled features (Table 6, "-CRT")
    lambda1: tuple[NonNegative, NonNegative] = (1.0, 0.1)  # of the multi-similarity losses; (1.0, 0.9) on SOP, In-Shop
    lambda2: NonNegative = 0.9  # weight of the consistency loss
    w_div: Annotated[NonNegative, RESIDUAL] = 1.0  # weight of the diversity loss of each set of prototypes
    consistency: Annotated[Literal["mean", "sum"], CONSISTENT] = "mean"  # over the N^2 entries; the sum as printed
    tested_branch: Annotated[Literal["branch1", "branch2"], TRAINED] = "branch1"  # whose embedding is tested
    multi_similarity: MultiSimilarity = MultiSimilarity()

    def __post_init__(self) -> None:
        require(
            self.sharing != "shared" or self.prototypes[0] == self.prototypes[1],
            "prototypes",
            self.prototypes,
            "branches that share prototypes need the same number; make them equal or set sharing=separate",
        )
