"""Names of classes are the same after removing spaces and composing Unicode; near-equal names are found."""

import pytest

from dml_jax.class_names import likeness, near_equal, normalised


def test_the_same_name() -> None:
    assert {normalised(name) for name in ("ash", " ash", "ash\t", "ash \n")} == {"ash"}
    assert normalised("gru\u0308n") == "gr\u00fcn"
    assert normalised("trees / ash ") == "trees/ash"
    assert normalised("Gray  Catbird") == "Gray  Catbird"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("Gray Catbird", other) for other in ("gray_catbird", "Gray-Catbird", "GrayCatbird", "gray  catbird")),
        *(("1", other) for other in ("1.0", "01", "+1", "1.", "001.00", "１")),
        ("1e5", "100000"),
        ("oak", "oak\u200b"),
        ("Swainson's", "Swainson\u2019s"),
        *(("1.5", "1.50"), ("model 3", "Model_3"), ("a-1", "a1"), ("1 2", "1_2"), ("STRASSE", "straße")),
    ],
)
def test_near_equal_names(one: str, other: str) -> None:
    assert near_equal([one, other, "else"]) == [sorted([one, other])]


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "-1"), ("1", "10"), ("1-2", "12"), ("1.5", "15"), ("v1.0", "v10"), ("C", "C++"), ("-", "_"), ("a", "ä"),
     ("model 1 1", "model 11"), ("12345678901234567890", "12345678901234567891"), ],
)  # fmt: skip
def test_other_names(one: str, other: str) -> None:
    assert likeness(one) != likeness(other)
