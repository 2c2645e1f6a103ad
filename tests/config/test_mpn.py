"""MPN's published results beside runs."""

from configs import published


def test_published_results_beside_runs() -> None:
    """Beside a run is the result of its own protocol, or else what differs is said."""
    found = published.beside_runs("cub_mpn")
    assert found["clean"]["paper"] == {"recall@1": 0.671, "recall@1_stderr": 0.0069}
    assert found["paper"]["paper"]["recall@1"] == 0.703
    quoted = published.beside_runs("cub_baseline")["clean"]
    assert quoted.keys() == {"paper (selected on test)"}
    refined = published.beside_runs("cub_mpn:refined")["paper"]
    assert refined.keys() == {"paper (after refinement, reciprocal)"}
