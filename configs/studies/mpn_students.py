"""MPN: students of a trained model (Seidenschwarz et al., ICML 2021, Table 8, lower part).

Each seed has a teacher of its own. Variants: the data sets.

    dml-jax study --study=configs/studies/mpn_students.py
    dml-jax study --study=configs/studies/mpn_students.py:omniglot
"""

from dml_jax.studies.definition import Row, Study, percent

VARIANTS = ("cub", "cars", "omniglot")
KINDS = {
    "distillation": "", "distillation, KL": ":distillation_kl", "feature imitation": ":imitation",
    "relational": ":relational",
}  # fmt: skip
TABLE_8 = {  # R@1, NMI; the paper does not say which form of distillation it is
    "cub": {"MPN": (70.3, 74.0), "distillation": (65.7, 70.3), "feature imitation": (65.3, 70.1),
            "relational": (64.9, 68.7)},
    "cars": {"MPN": (88.1, 74.8), "distillation": (85.6, 71.6), "feature imitation": (85.6, 70.9),
             "relational": (84.7, 70.5)},
}  # fmt: skip


def get_study(variant: str = "cub") -> Study:
    reported = {name: {"paper": percent(r1=r1, nmi=nmi)} for name, (r1, nmi) in TABLE_8.get(variant, {}).items()}
    students = tuple(
        Row(
            name, f"configs/{variant}_student.py{suffix}", {"method.teacher": "@MPN"},
            reported=reported.get(name.removesuffix(", KL"), {}),
        )
        for name, suffix in KINDS.items()
    )  # fmt: skip
    file = f"configs/{variant}_mpn.py"
    control = Row("no teacher", f"{file}:auxiliary")  # in Table 3
    if variant == "omniglot":
        control = Row("no teacher", file, {"method.losses": "auxiliary"})
    teacher = Row("MPN", file, reported=reported.get("MPN", {}))
    return Study(
        title=f"MPN, students: {variant}",
        source="Paper, Table 8: no student reaches MPN itself, nor on CUB training without a teacher (Table 3).",
        rows=(teacher, control, *students),
    )
