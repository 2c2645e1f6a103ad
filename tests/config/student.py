"""The students' configurations."""

from tests.config.cases import Facts

FACTS = Facts(
    files=["cub_student", "cars_student"],
    number=10,
    weights={"resnet50"},
    without_effect=["cub_student:imitation method.soft_temperature=3"],
    of_students=True,
)
