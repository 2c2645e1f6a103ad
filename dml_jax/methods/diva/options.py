"""Options of DiVA and of the tasks its Figure 4 puts in DaNCE's place."""

from dataclasses import dataclass
from typing import Literal

from dml_jax.config_schema import require

Task = Literal["discriminative", "selfsimilarity", "shared", "intra"]
TASKS: tuple[Task, ...] = ("discriminative", "selfsimilarity", "shared", "intra")
CLASSIFIERS = ("rotnet", "deepcluster")  # these tasks have no embedding: they classify the backbone's features


@dataclass(frozen=True)
class Config:
    """Options of DiVA; the defaults are those of the authors' CUB run with ResNet-50."""

    name: str = "diva"
    tasks: tuple[Task, ...] = TASKS  # the ones trained
    # "discriminative": every task is the discriminative one with triplets of its own, the ensemble DiVA is compared to.
    learners: Literal["diverse", "discriminative"] = "diverse"
    embedding_dim: int = 128  # D of each task
    # Weights of the auxiliary losses; the discriminative one has 1.
    alpha_selfsimilarity: float = 0.3
    alpha_shared: float = 0.3
    alpha_intra: float = 0.3
    # Test-time weights in the order of TASKS; only their ratios matter.
    ensemble: tuple[float, float, float, float] = (0.75, 1.25, 1.25, 1.25)
    base: Literal["margin", "triplet"] = "margin"  # loss of the triplets
    margin: float = 0.2
    beta: float = 1.2  # where the margin loss's boundary starts; learnt for each class and task
    # Shared triplets: the discriminative task's after a permutation of the labels; or of three classes with a
    # distance-weighted negative ("standard"), and a distance-weighted positive too ("full").
    shared: Literal["random", "standard", "full"] = "random"
    lower_cutoff: float = 0.5  # smaller distances count as this one, in mining and in DaNCE
    upper_cutoff: float = 1.4  # queue entries farther than this get no weight in DaNCE
    # The self-similarity task: DaNCE ("contrast"); or what the paper compares it with, see `_diva_tasks`: instance
    # discrimination by a memory of all images or by the batch's second views ("spread", which is what the authors' code
    # has), rotations, clusters.
    selfsimilarity: Literal["contrast", "instance", "spread", "rotnet", "deepcluster"] = "contrast"
    # DaNCE's weights normalised over the queries, as in the code first published; over the queue, as corrected there
    # later ("fixed"); or all 1, plain NCE ("off").
    dance: Literal["original", "fixed", "off"] = "original"
    dance_lambda: float = 1.0  # cut-off of 1/q with equations="paper", which does not state it
    temperature: float = 0.01  # tau of DaNCE; 0.1 in the paper
    learn_temperature: bool = False
    queue_batches: int = 30  # size of the queue, in batches
    momentum: float = 0.9  # of the key network
    instance_temperature: float = 0.1  # of both kinds of instance discrimination
    memory_momentum: float = 0.5  # of a row of the memory of all images
    clusters: int = 300  # of DeepCluster
    cluster_epochs: int = 2  # between two clusterings
    # Decorrelated pairs, source-target, where both have an embedding; psi maps the source to the target.
    directions: tuple[str, ...] = tuple(f"{task}-discriminative" for task in TASKS[1:])
    rho: tuple[float, ...] = (1500.0,)  # weight of each direction, or one for all
    psi_dim: int = 512  # hidden width of psi
    equations: Literal["authors", "paper"] = "authors"

    def __post_init__(self) -> None:
        def rule(holds: bool, field: str, text: str) -> None:
            require(holds, f"method.{field}", getattr(self, field), text)

        for field in (
            "embedding_dim", "beta", "lower_cutoff", "dance_lambda", "temperature", "queue_batches", "psi_dim",
            "instance_temperature", "cluster_epochs",
        ):  # fmt: skip
            rule(getattr(self, field) > 0, field, "must be positive")
        for field in ("alpha_selfsimilarity", "alpha_shared", "alpha_intra", "margin"):
            rule(getattr(self, field) >= 0, field, "must not be negative")
        for field in ("ensemble", "rho"):
            rule(min(getattr(self, field), default=0) >= 0, field, "must hold no negative number")
        for field in ("momentum", "memory_momentum"):
            rule(0 <= getattr(self, field) <= 1, field, "must be in [0, 1]")
        rule(self.clusters > 1, "clusters", "must be at least 2")
        rule(len(self.tasks) > 0, "tasks", "must name at least one task")
        for field in ("tasks", "directions"):
            names = getattr(self, field)
            rule(len(set(names)) == len(names), field, "must name each only once")
        rule(
            self.learners == "diverse" or self.selfsimilarity == "contrast",
            "learners",
            f"leaves no room for method.selfsimilarity={self.selfsimilarity!r}",
        )
        rule(
            len(embedded(self)) > 0,
            "selfsimilarity",
            f"gives no embedding; add another task to method.tasks={self.tasks!r}",
        )
        weighted = [task for task, weight in zip(TASKS, self.ensemble, strict=True) if weight > 0]
        rule(
            bool(set(weighted) & set(embedded(self))),
            "ensemble",
            f"must weigh one of method.tasks={self.tasks!r} that has an embedding",
        )
        rule(
            self.lower_cutoff < self.upper_cutoff,
            "lower_cutoff",
            f"must be below method.upper_cutoff={self.upper_cutoff}",
        )
        pairs = {f"{a}-{b}" for a in TASKS for b in TASKS if a != b}
        rule(
            set(self.directions) <= pairs,
            "directions",
            "must be source-target, two different ones of " + ", ".join(TASKS),
        )
        rule(
            len(self.rho) in (1, len(self.directions)),
            "rho",
            "must hold one number, or one for each of method.directions",
        )


def embedded(config: Config) -> tuple[str, ...]:
    """The tasks that are on and have an embedding, in the order of TASKS."""
    without = {"selfsimilarity"} if config.selfsimilarity in CLASSIFIERS else set()
    return tuple(task for task in TASKS if task in set(config.tasks) - without)


def ranked(config: Config) -> tuple[str, ...]:
    """The tasks that learn from triplets."""
    others = () if config.learners == "discriminative" else ("selfsimilarity",)
    return tuple(task for task in embedded(config) if task not in others)


def selfsupervised(config: Config) -> str:
    """What the self-similarity task learns; "" where there is none."""
    return config.selfsimilarity if "selfsimilarity" in config.tasks and config.learners == "diverse" else ""


def decorrelated(config: Config) -> dict[str, float]:
    """rho of every direction whose two tasks have an embedding."""
    rho = config.rho * len(config.directions) if len(config.rho) == 1 else config.rho
    pairs = zip(config.directions, rho, strict=True)
    return {d: r for d, r in pairs if set(d.split("-")) <= set(embedded(config))}
