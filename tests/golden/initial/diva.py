"""DiVA."""

from tests.golden.initial import Case

TASKS = ("discriminative", "selfsimilarity", "shared", "intra")
PSI = "psi/selfsimilarity-discriminative"
CASES = {
    "DiVA": {
        **{f"embedding {task}": Case("cars_diva", f"heads/{task}") for task in TASKS},
        "beta": Case("cars_diva", "beta/discriminative"),
        "psi hidden": Case("cars_diva", f"{PSI}/hidden"),
        "psi output": Case("cars_diva", f"{PSI}/output"),
    }
}
