"""MPN: ensembles of one to five networks (Seidenschwarz et al., ICML 2021, Table 4).

The networks of an ensemble differ in the seed. Variants: the data sets.

    dml-jax study --study=configs/studies/mpn_ensembles.py
    dml-jax study --study=configs/studies/mpn_ensembles.py:omniglot
"""

from dml_jax.studies.definition import Row, Study

VARIANTS = ("cub", "cars", "sop", "inshop", "omniglot")
TABLE_4: dict[str, dict[int, tuple[float, ...]]] = {  # R@1, NMI of two and of five networks
    "cub": {2: (72.2, 74.3), 5: (73.1, 74.4)},
    "cars": {2: (90.9, 74.9), 5: (91.5, 75.4)},
    "sop": {2: (81.8, 92.7), 5: (82.1, 92.8)},
    "inshop": {2: (92.9,), 5: (93.4,)},
}
APART = 1000  # between the seeds of two networks


def get_study(variant: str = "cub") -> Study:
    names = [f"network {number}" for number in range(1, 6)]
    networks = tuple(
        Row(name, f"configs/{variant}_mpn.py", {"seed": APART * number} if number else {})
        for number, name in enumerate(names)
    )
    reported = {
        count: dict(zip(("recall@1", "nmi"), (round(v / 100, 4) for v in values), strict=False))
        for count, values in TABLE_4.get(variant, {}).items()
    }
    ensembles = tuple(
        Row(
            f"{count} networks", members=tuple(names[:count]),
            reported={"paper": reported[count]} if count in reported else {},
        )
        for count in (5, 4, 3, 2)  # the smallest last, because a smoke test trains the first and the last row
    )  # fmt: skip
    return Study(
        title=f"MPN, ensembles: {variant}",
        source="Paper, Table 4: two networks gain 0.1 to 2.8 points of R@1, five 0.6 to 3.4.",
        rows=networks + ensembles,
    )
