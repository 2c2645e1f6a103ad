"""Options of students."""

from typing import Annotated, Literal

from dml_jax.options.fields import Fraction, NonNegative, Positive, PositiveInt, require, section
from dml_jax.options.methods import Pooling
from dml_jax.options.needs import Needs

Kind = Literal["distillation", "distillation_kl", "imitation", "relational"]
GROUPS = ("backbone", "embedding", "auxiliary")  # of parameters
DISTILLED = Needs(
    "a positive method.weight and a distillation as method.kind",
    lambda c: c.method.weight > 0 and c.method.kind.startswith("distillation"),
)
LABELLED = Needs("a positive method.label_weight", lambda c: c.method.label_weight > 0)


@section
class Config:
    """Options of a student; the defaults are those of the authors' CUB configuration."""

    name: str = "student"
    teacher: str = ""  # work directory of the teacher's run, on the same data
    kind: Kind = "distillation"  # what is learned from the teacher
    weight: NonNegative = 1.0  # w, of the teacher's term; 0.01 for "relational" in the authors' code
    label_weight: NonNegative = 1.0  # w_l, of the cross-entropy with the labels; 0: learn from the teacher alone
    # tau, divides both logits of a distillation; 10 on the authors' other data sets.
    soft_temperature: Annotated[Positive, DISTILLED] = 1.0
    embedding_dim: PositiveInt = 512  # D
    temperature: Annotated[Positive, LABELLED] = 0.2  # T, divides the logits of the cross-entropy
    smoothing: Annotated[Fraction, LABELLED] = 0.1  # epsilon of the label smoothing
    pooling: Pooling = "max"  # of the feature map

    def __post_init__(self) -> None:
        require(self.teacher != "", "teacher", self.teacher, "must be the work directory of a trained run")
        require(
            self.weight + self.label_weight > 0,
            "weight",
            self.weight,
            f"leaves no loss to minimise together with label_weight={self.label_weight}; set one above 0",
        )
