"""Options of DiVA and of the self-supervised tasks of its Figure 4."""

from typing import Annotated, Literal

from dml_jax.options.fields import (
    AtLeastTwo,
    NonEmpty,
    NonNegative,
    Positive,
    PositiveInt,
    Probability,
    require,
    section,
)

Task = Literal["discriminative", "selfsimilarity", "shared", "intra"]
Figure4Task = Literal["instance", "spread", "rotnet", "deepcluster"]
SelfSupervision = Literal["contrast", Figure4Task]
TASKS: tuple[Task, ...] = ("discriminative", "selfsimilarity", "shared", "intra")
CLASSIFIERS = ("rotnet", "deepcluster")  # classify the backbone's features and have no embedding
GROUPS = ("model", "beta", "psi", "temperature")  # of parameters


@section
class Config:
    """Options of DiVA; the defaults are those of the authors' CUB run with ResNet-50."""

    name: str = "diva"
    tasks: Annotated[tuple[Task, ...], NonEmpty] = TASKS  # that are trained
    # "discriminative" trains every task with discriminative triplets: the ensemble that DiVA is compared with.
    learners: Literal["diverse", "discriminative"] = "diverse"
    embedding_dim: PositiveInt = 128  # D of each task
    alpha_selfsimilarity: NonNegative = 0.3  # weight of this loss; that of the discriminative loss is 1
    alpha_shared: NonNegative = 0.3  # weight of this loss
    alpha_intra: NonNegative = 0.3  # weight of this loss
    # Test-time weights in the order of TASKS; only their ratios matter.
    ensemble: tuple[NonNegative, NonNegative, NonNegative, NonNegative] = (0.75, 1.25, 1.25, 1.25)
    base: Literal["margin", "triplet"] = "margin"  # loss of the triplets
    margin: NonNegative = 0.2  # of that loss
    beta: Positive = 1.2  # initial boundary of the margin loss, which is learned per class and task
    # Shared triplets: discriminative triplets after permuting the labels; or three different classes with a
    # distance-weighted negative ("standard") and also a distance-weighted positive ("full").
    shared: Literal["random", "standard", "full"] = "random"
    lower_cutoff: Positive = 0.5  # smaller distances are raised to this value, in mining and in DaNCE
    upper_cutoff: Positive = 1.4  # queue entries farther away have weight 0 in DaNCE
    # The self-similarity task: DaNCE ("contrast") or one of the tasks in `self_supervision`.
    selfsimilarity: SelfSupervision = "contrast"
    # Weights of DaNCE: normalised over the queries, as in the code first published ("original"); over the queue, as
    # corrected there later ("fixed"); all 1, which is plain NCE ("off").
    dance: Literal["original", "fixed", "off"] = "original"
    dance_lambda: Positive = 1.0  # upper bound of 1/q with equations="paper"; not given in the paper
    temperature: Positive = 0.01  # tau of DaNCE; 0.1 in the paper
    learn_temperature: bool = False  # start tau at this value and train it
    queue_batches: PositiveInt = 30  # length of the queue in batches
    momentum: Probability = 0.9  # of the key network
    instance_temperature: Positive = 0.1  # for "instance" and "spread"
    memory_momentum: Probability = 0.5  # for "instance": of the rows of its memory
    clusters: AtLeastTwo = 300  # for "deepcluster"
    cluster_epochs: PositiveInt = 2  # for "deepcluster": epochs between two clusterings
    # Decorrelated pairs, source-target, used if both tasks have an embedding; psi maps the source to the target.
    directions: tuple[str, ...] = tuple(f"{task}-discriminative" for task in TASKS[1:])
    rho: tuple[NonNegative, ...] = (1500.0,)  # weight of each direction, or one for all
    psi_dim: PositiveInt = 512  # hidden width of psi
    equations: Literal["authors", "paper"] = "authors"  # of the code, or as printed

    def __post_init__(self) -> None:
        def rule(holds: bool, field: str, text: str) -> None:
            require(holds, field, getattr(self, field), text)

        for field in ("tasks", "directions"):
            names = getattr(self, field)
            rule(len(set(names)) == len(names), field, "must not contain a name twice")
        rule(
            self.learners == "diverse" or self.selfsimilarity == "contrast",
            "learners",
            f"cannot be combined with selfsimilarity={self.selfsimilarity!r}; set the latter to 'contrast'",
        )
        rule(
            len(embedding_tasks(self)) > 0,
            "selfsimilarity",
            f"has no embedding; add another task to tasks={self.tasks!r}",
        )
        weighted = [task for task, weight in zip(TASKS, self.ensemble, strict=True) if weight > 0]
        rule(
            bool(set(weighted) & set(embedding_tasks(self))),
            "ensemble",
            f"must have a positive weight for one of tasks={self.tasks!r} that has an embedding",
        )
        rule(
            self.lower_cutoff < self.upper_cutoff,
            "lower_cutoff",
            f"must be below upper_cutoff={self.upper_cutoff}",
        )
        pairs = {f"{a}-{b}" for a in TASKS for b in TASKS if a != b}
        rule(
            set(self.directions) <= pairs,
            "directions",
            "must be source-target pairs of two different tasks from " + ", ".join(TASKS),
        )
        rule(
            len(self.rho) in (1, len(self.directions)),
            "rho",
            "must hold one number, or one per direction in directions",
        )


def embedding_tasks(config: Config) -> tuple[Task, ...]:
    """The tasks in `config.tasks` that have an embedding, in the order of TASKS."""
    without = {"selfsimilarity"} if config.selfsimilarity in CLASSIFIERS else set()
    return tuple(task for task in TASKS if task in set(config.tasks) - without)


def ranking_tasks(config: Config) -> tuple[Task, ...]:
    """The tasks trained with triplets."""
    others = () if config.learners == "discriminative" else ("selfsimilarity",)
    return tuple(task for task in embedding_tasks(config) if task not in others)


def self_supervised_task(config: Config) -> SelfSupervision | None:
    """What the self-similarity task learns; None if it is off or trained with triplets."""
    return config.selfsimilarity if "selfsimilarity" in config.tasks and config.learners == "diverse" else None


def decorrelation_weights(config: Config) -> dict[str, float]:
    """rho of each direction whose two tasks have an embedding."""
    rho = config.rho * len(config.directions) if len(config.rho) == 1 else config.rho
    pairs = zip(config.directions, rho, strict=True)
    return {d: r for d, r in pairs if set(d.split("-")) <= set(embedding_tasks(config))}
