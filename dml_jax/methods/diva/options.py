"""Options of DiVA."""

from typing import Annotated, Any, Literal

from dml_jax.config.fields import (
    Effect,
    Mark,
    NonEmpty,
    NonNegative,
    Positive,
    PositiveInt,
    Probability,
    Rules,
    require,
    section,
)

Task = Literal["discriminative", "selfsimilarity", "shared", "intra"]
TASKS: tuple[Task, ...] = ("discriminative", "selfsimilarity", "shared", "intra")
Weights = tuple[NonNegative, NonNegative, NonNegative, NonNegative]
GROUPS = ("backbone", "embedding", "beta", "psi")  # parameter groups


@section
class Config:
    """Options of DiVA, with the defaults of the authors' CUB run with ResNet-50.

    Attributes:
      name: Module of dml_jax/methods, or an import path.
      tasks: Tasks to train.
      learners: "diverse" is DiVA. "discriminative" trains every task with discriminative triplets:
        the ensemble with which the paper compares DiVA. "permuted" is a placebo: the auxiliary
        tasks learn from permuted labels, the self-supervised task from permuted second views.
      embedding_dim: Length D of the embedding of each task.
      alpha_selfsimilarity: Weight of the self-similarity loss; the discriminative loss has weight
        1.
      alpha_shared: Weight of the loss on shared triplets.
      alpha_intra: Weight of the intra-class loss.
      ensemble: Weights of the embeddings at test time, in the order of `TASKS`; only their ratios
        matter.
      base: Loss on the triplets of all tasks.
      margin: Margin of the loss on triplets.
      beta: Initial boundary of the margin loss; boundaries are learned per class and task.
      shared: Triplets of the shared task: discriminative triplets after a permutation of the labels
        ("random"), or three different classes with a distance-weighted negative ("standard").
      dance: Weights of DaNCE: normalised over the queries, as in the first published code
        ("original"), over the queue, as in its later correction ("fixed"), or all 1, which is plain
        NCE ("off").
      dance_lambda: Upper bound of 1/q with equations="paper"; not stated in the paper.
      temperature: Temperature tau of DaNCE; 0.1 in the paper.
      queue_batches: Length of the queue in batches.
      momentum: Momentum of the key network.
      directions: Pairs of tasks to decorrelate, "source-target", ignored unless both are trained;
        psi maps the source to the target.
      rho: Weight of each direction, or one weight for all.
      psi_dim: Width of the hidden layer of psi.
      equations: Equations of the "authors"' code, or as printed in the "paper".
    """

    name: str = "diva"
    tasks: Annotated[tuple[Task, ...], NonEmpty] = TASKS
    learners: Literal["diverse", "discriminative", "permuted"] = "diverse"
    embedding_dim: PositiveInt = 128
    alpha_selfsimilarity: NonNegative = 0.3
    alpha_shared: NonNegative = 0.3
    alpha_intra: NonNegative = 0.3
    ensemble: Annotated[Weights, Effect.EMBEDDING, Mark.SAME_EXPERIMENT] = (0.75, 1.25, 1.25, 1.25)
    base: Literal["margin", "triplet"] = "margin"
    margin: NonNegative = 0.2
    beta: Positive = 1.2
    shared: Literal["random", "standard"] = "random"
    dance: Literal["original", "fixed", "off"] = "original"
    dance_lambda: Positive = 1.0
    temperature: Positive = 0.01
    queue_batches: PositiveInt = 30
    momentum: Probability = 0.9
    directions: tuple[str, ...] = tuple(f"{task}-discriminative" for task in TASKS[1:])
    rho: tuple[NonNegative, ...] = (1500.0,)
    psi_dim: PositiveInt = 512
    equations: Literal["authors", "paper"] = "authors"

    def __post_init__(self) -> None:
        weighted = {task for task, weight in zip(TASKS, self.ensemble, strict=True) if weight > 0}
        pairs = {f"{a}-{b}" for a in TASKS for b in TASKS if a != b}
        positive = f"must have a positive weight for a task of tasks={self.tasks!r}"
        source_target = f"must be source-target pairs of different tasks from {', '.join(TASKS)}"
        numbers = "must contain one number, or one per direction in directions"
        distinct = "must not repeat a name"
        directions = set(self.directions)
        for field, holds, rule in (
            ("tasks", len(set(self.tasks)) == len(self.tasks), distinct),
            ("directions", len(directions) == len(self.directions), distinct),
            ("ensemble", weighted & set(embedding_tasks(self)), positive),
            ("directions", directions <= pairs, source_target),
            ("rho", len(self.rho) in (1, len(self.directions)), numbers),
        ):
            require(bool(holds), field, getattr(self, field), rule)

    def inert(self, config: Any) -> Rules:
        """What options need; see `config.fields.inert`."""
        ranked, contrastive = bool(ranking_tasks(self)), is_contrastive(self)
        weighted = (
            (task in self.tasks, f"{task} in method.tasks", f"alpha_{task}") for task in TASKS[1:]
        )
        return (
            *weighted,
            ("shared" in self.tasks, "shared in method.tasks", "shared"),
            (ranked, "a task with triplets in method.tasks", "base", "margin"),
            (
                self.base == "margin" and ranked,
                "method.base='margin' and a task with triplets",
                "beta",
            ),
            (
                self.learners != "discriminative",
                "method.learners other than 'discriminative'",
                "shared",
            ),
            (
                decorrelation_weights(self),
                "two tasks that method.directions decorrelate",
                *("rho", "psi_dim"),
            ),
            (
                contrastive,
                "the task selfsimilarity with method.learners other than 'discriminative'",
                *("dance", "temperature", "queue_batches", "momentum"),
            ),
            (
                self.equations == "authors" or self.dance == "off",
                "method.equations='authors'",
                "dance",
            ),
            (
                self.equations == "paper" and self.dance != "off" and contrastive,
                "method.equations='paper' and DaNCE with method.dance other than 'off'",
                "dance_lambda",
            ),
        )


def embedding_tasks(config: Config) -> tuple[Task, ...]:
    """The tasks in `config.tasks`, in the order of TASKS."""
    return tuple(task for task in TASKS if task in config.tasks)


def weighted_parts(config: Config) -> tuple[tuple[str, int, int], ...]:
    """The tasks with a positive weight at test time, with their columns, as in `Hooks.parts`."""
    dim, weights = config.embedding_dim, dict(zip(TASKS, config.ensemble, strict=True))
    parts = enumerate(embedding_tasks(config))
    return tuple((task, i * dim, (i + 1) * dim) for i, task in parts if weights[task] > 0)


def ranking_tasks(config: Config) -> tuple[Task, ...]:
    """The tasks trained with triplets."""
    contrastive = () if config.learners == "discriminative" else ("selfsimilarity",)
    return tuple(task for task in embedding_tasks(config) if task not in contrastive)


def is_contrastive(config: Config) -> bool:
    """Whether the self-similarity task is trained, with DaNCE instead of triplets."""
    return "selfsimilarity" in config.tasks and config.learners != "discriminative"


def decorrelation_weights(config: Config) -> dict[str, float]:
    """rho of each direction between two of the tasks."""
    rho = config.rho * len(config.directions) if len(config.rho) == 1 else config.rho
    pairs = zip(config.directions, rho, strict=True)
    return {d: r for d, r in pairs if set(d.split("-")) <= set(embedding_tasks(config))}
