"""DiVA: alternatives to DaNCE, and an ensemble (Milbich, Roth et al., ECCV 2020, Figure 4).

One variant per data set.

    dml-jax study --study=configs/studies/diva_self_supervision.py
"""

from configs import published
from configs.recipes import diva
from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "sop", "omniglot")
D, DANCE = "discriminative", "selfsimilarity"
NAMES = {
    "instance": "instance discrimination, memory",  # of all images, as the paper cites it
    "spread": "instance discrimination, views",  # with the second views of the batch, as in the authors' code
    "rotnet": "RotNet",
    "deepcluster": "DeepCluster",
}
EQUAL = (1.0, 1.0, 1.0, 1.0)
ONE = diva.alpha(1.0)


def get_study(variant: str = "cub") -> Study:
    config, common, dimensions, classifier = base = diva.ablations(variant)

    def instead(task: str) -> Row:
        return Row(NAMES[task], config, base.tasks(D, DANCE, selfsimilarity=task, alpha_selfsimilarity=1.0))

    def classified(task: str) -> Row:  # without an embedding of its own
        options = base.tasks(
            D, DANCE, selfsimilarity=task, alpha_selfsimilarity=1.0, embedding_dim=dimensions, ensemble=EQUAL
        )
        return Row(NAMES[task], config, {**options, "train.groups.classifier": classifier})

    study = Study(
        title=f"DiVA, the bars of Figure 4: {variant}",
        source="Paper, Figure 4: DaNCE gains most, NCE is below the baseline; heights are not printed.",
        rows=(
            Row("baseline", config, base.tasks(D)),
            Row("DaNCE", config, base.tasks(D, DANCE)),
            Row("NCE", config, base.tasks(D, DANCE, dance="off")),
            instead("instance"),
            instead("spread"),
            classified("rotnet"),
            classified("deepcluster"),
            Row(
                "discriminative ensemble",
                config,
                {**common, **ONE, "method.learners": "discriminative", "method.ensemble": EQUAL},
            ),
            Row("DiVA", config, common),
        ),
    )
    return published.beside_rows(f"diva_self_supervision:{variant}", study)
