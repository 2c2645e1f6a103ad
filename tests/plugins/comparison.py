"""The method against normalised softmax and Proxy-Anchor, for `dml-jax study`."""

from dml_jax.lab.definition import Row, Study

SHORT = {"train.steps": 300}


def get_study():
    return Study(
        title="A method of our own, on digits",
        rows=(
            Row("softmax", "configs/digits_baseline.py", SHORT),
            Row("Proxy-Anchor", "configs/digits_baseline.py:proxy_anchor", SHORT),
            Row("ours", "tests/plugins/experiment.py"),
        ),
        seeds=(0, 1, 2),
    )
