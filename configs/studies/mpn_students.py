"""MPN: students of a trained model (Seidenschwarz et al., ICML 2021, Table 8, lower part).

Each seed has its own teacher.

    dml-jax study --study=configs/studies/mpn_students.py
"""

from configs import published
from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "omniglot")
KINDS = {
    "distillation": "", "distillation, KL": ":distillation_kl", "feature imitation": ":imitation",
    "relational": ":relational",
}  # fmt: skip


def get_study(variant: str = "cub") -> Study:
    file = f"configs/{variant}_mpn.py"
    students = (
        Row(name, f"configs/{variant}_student.py{suffix}", {"method.teacher": "@MPN"}) for name, suffix in KINDS.items()
    )
    study = Study(
        title=f"MPN, students: {variant}",
        source="Paper, Table 8: no student reaches MPN itself, nor on CUB training without a teacher (Table 3).",
        rows=(Row("MPN", file), Row("no teacher", file, {"method.losses": "auxiliary"}), *students),
    )
    return published.beside_rows(f"mpn_students:{variant}", study)
