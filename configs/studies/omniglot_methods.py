"""Every method and baseline on Omniglot, with the same network, data and number of steps
(benchmarks/RESULTS.md).

Variants: the four papers and cross-entropy; every method and baseline; pair losses with a memory.

    dml-jax study --study=configs/studies/omniglot_methods.py --seeds=0,1,2 --jobs=2
    dml-jax study --study=configs/studies/omniglot_methods.py:all --config.train.steps=600
"""

from pathlib import Path

from configs.recipes.small_baseline import MEMORIES, OPTIONS
from dml_jax.lab.definition import Row, Study

OWN = {
    path.stem.removeprefix("omniglot_") for path in Path(__file__).parents[1].glob("omniglot_*.py")
}
PAPERS = tuple(sorted(OWN - {"baseline", "group_loss", "student"}))  # a student needs a teacher
VARIANTS = ("papers", "all", "memory")


def get_study(variant: str = "papers") -> Study:
    papers = tuple(Row(name, f"configs/omniglot_{name}.py") for name in PAPERS)
    group_loss = tuple(Row(name, f"configs/omniglot_{name}.py") for name in OWN & {"group_loss"})
    baselines = {
        name: Row(name, f"configs/omniglot_baseline.py:{name}") for name in (*OPTIONS, *MEMORIES)
    }
    rows = {
        "papers": (*papers, baselines["cross_entropy"]),
        "all": (*papers, *group_loss, *(baselines[name] for name in OPTIONS)),
        "memory": tuple(baselines[name] for pair in MEMORIES.items() for name in reversed(pair)),
    }
    return Study(
        title=f"Omniglot, methods: {variant}",
        source="No paper reports results on this split; earlier results are in "
        "benchmarks/RESULTS.md.",
        rows=rows[variant],
    )
