import hashlib

import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.train.step import fingerprint

KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_fingerprint_is_the_hash_of_names_types_shapes_and_bytes():
    expected = hashlib.sha256(b"['head']['kernel'] float32 (2, 3)" + KERNEL.tobytes())
    assert fingerprint({"head": {"kernel": jnp.asarray(KERNEL)}}) == expected.hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        {"head": {"kernel": KERNEL + np.float32(1e-6) * (KERNEL == 3)}},
        {"head": {"kernel": KERNEL.reshape(3, 2)}},
        {"head": {"kernel": KERNEL.view(np.int32)}},
        {"neck": {"kernel": KERNEL}},
        {"head": {"kernel": KERNEL}, "neck": {}, "tail": KERNEL},
    ],
    ids=["a value", "shape", "type", "name", "one more"],
)
def test_fingerprint_differs_with(other):
    assert fingerprint(other) != fingerprint({"head": {"kernel": KERNEL}})
