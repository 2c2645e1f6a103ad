"""MPN: ensembles of one to five networks (Seidenschwarz et al., ICML 2021, Table 4).

The networks of an ensemble differ in the seed. On CUB and Cars196, the paper also reports ensembles of the Group Loss,
whose settings on SOP are not known.

    dml-jax study --study=configs/studies/mpn_ensembles.py
"""

from configs import published
from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "sop", "inshop", "omniglot")
APART = 1000  # between the seeds of two networks


def get_study(variant: str = "cub") -> Study:
    names = [f"network {number}" for number in range(1, 6)]
    networks = tuple(
        Row(name, f"configs/{variant}_mpn.py", {"seed": APART * number} if number else {})
        for number, name in enumerate(names)
    )
    ensembles = tuple(Row(f"{count} networks", members=tuple(names[:count])) for count in (5, 4, 3, 2))
    if variant in ("cub", "cars"):
        others = [f"Group Loss network {number}" for number in range(1, 6)]
        networks += tuple(
            Row(name, f"configs/{variant}_group_loss.py", {"seed": APART * number} if number else {})
            for number, name in enumerate(others)
        )
        ensembles = (
            tuple(Row(f"{count} Group Loss networks", members=tuple(others[:count])) for count in (5, 2)) + ensembles
        )
    study = Study(
        title=f"MPN, ensembles: {variant}",
        source="Paper, Table 4: two networks gain 0.1 to 2.8 points of R@1, five 0.6 to 3.4.",
        rows=networks + ensembles,
    )
    return published.beside_rows(f"mpn_ensembles:{variant}", study)
