"""All methods whose contract is tested: baselines, and those of the papers that are there."""

from pathlib import Path

from dml_jax.methods import baseline
from tests.contract.cases import BODY, DATA, DIM, LARGE_DATA, Large, Small
from tests.papers import modules


def of_baseline(loss: str, **options: int) -> Large:
    config = baseline.make_config(loss, embedding_dim=DIM, **options)
    return Large(lambda: (baseline.build(config, BODY, LARGE_DATA), None), slow=False, slow_trace=False)


CONFIG = baseline.make_config(embedding_dim=8)
SMALL = {"baseline": Small(lambda body: baseline.build(CONFIG, body, DATA), examined=False)}
LARGE = {"proxies": of_baseline("proxy_anchor"), "memory": of_baseline("multi_similarity", memory=64)}
for paper in modules(Path(__file__).parent):
    SMALL |= paper.SMALL
    LARGE |= paper.LARGE
