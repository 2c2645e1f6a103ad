"""Students in the tests of the contract, taught by a baseline with random weights."""

from typing import Any

import jax

from dml_jax.backbones.contract import Backbone
from dml_jax.methods import baseline, student
from dml_jax.methods.contract import Batch, Method, TrainingSet, teaching
from tests import toys
from tests.contract.cases import BATCH, BODY, DATA, LARGE_DATA, Large, Small

DIM = 8


def parts(body: Backbone, data: TrainingSet) -> tuple[Method, Method]:
    """A student and its teacher."""
    config = student.Config(teacher="a baseline", kind="imitation", embedding_dim=DIM)
    teacher = baseline.build(baseline.make_config(embedding_dim=DIM), body, data)
    return student.build(config, body, data), teacher


def with_teacher(body: Backbone) -> Method:
    """A student whose loss has its teacher."""
    made, teacher = parts(body, DATA)
    variables = jax.jit(teacher.init)(jax.random.key(2), toys.batch(1))
    teach = jax.tree_util.Partial(teaching(teacher), *variables)

    def loss(params: Any, model_state: Any, encoded: Any, batch: Batch, *rest: Any) -> Any:
        return made.loss(params, model_state, encoded, batch._replace(teacher=teach), *rest)

    return made._replace(loss=loss)


def large() -> tuple[Method, Any]:
    made, teacher = parts(BODY, LARGE_DATA)
    variables = teacher.init(jax.random.key(0), toys.batch(1, size=BATCH))
    return made, jax.tree_util.Partial(teaching(teacher), *variables)


SMALL = {"student": Small(with_teacher, slow=True, examined=False)}
LARGE = {"student": Large(large)}
OPTIONS = ("method.embedding_dim=8", "method.teacher={folder}/baseline-whole")
INTERRUPTED = {"student": ("omniglot_student:imitation", *OPTIONS)}
