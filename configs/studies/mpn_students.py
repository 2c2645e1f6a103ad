"""MPN: students of a trained model (Seidenschwarz et al., ICML 2021, Table 8, lower part).

Each seed has a teacher of its own. Variants: the data sets.

    python -m dml_jax.study --study=configs/studies/mpn_students.py
    python -m dml_jax.study --study=configs/studies/mpn_students.py:omniglot
"""

from dml_jax.studies.definition import Row, Study, percent

VARIANTS = ("cub", "cars", "omniglot")
KINDS = {
    "distillation": "", "distillation, KL": ":distillation_kl", "feature imitation": ":imitation",
    "relational": ":relational",
}  # fmt: skip


def get_study(variant: str = "cub") -> Study:
    students = tuple(
        Row(name, f"configs/{variant}_student.py{suffix}", {"method.teacher": "@MPN"}) for name, suffix in KINDS.items()
    )
    reported = {"cub": percent(r1=70.3, nmi=74.0), "cars": percent(r1=88.1, nmi=74.8)}.get(variant)
    control = Row("no teacher", f"configs/{variant}_mpn.py", {"method.losses": "auxiliary"})
    teacher = Row("MPN", f"configs/{variant}_mpn.py", reported={"paper": reported} if reported else {})
    return Study(
        title=f"MPN, students: {variant}",
        source="Paper, Table 8: no student reaches MPN itself.",
        rows=(teacher, control, *students),
    )
