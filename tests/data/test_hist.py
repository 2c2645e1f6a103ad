"""HIST's sampler against its authors' code."""

import numpy as np
import pytest

from dml_jax.errors import ConfigError
from tests.golden.sampling import assert_uniform, build, cases, epoch, files, repeats


@pytest.mark.parametrize("name", files("samplers"))
def test_sampler(name: str) -> None:
    for case, facts in cases(name, "hist"):
        sizes, (batch_size, images) = facts["class_sizes"], (int(v) for v in facts["bs_ipc"])
        labels = np.repeat(np.arange(len(sizes)), sizes)
        if batch_size % images:
            with pytest.raises(ConfigError, match="must divide"):
                build("distinct_classes", sizes, batch_size, images)
            continue
        sampler = build("distinct_classes", sizes, batch_size, images)
        assert sampler.first_step(1) == facts["batches_after_BatchSampler_drop_last"], case
        assert sampler.first_step(1) * batch_size == facts["items_yielded"]
        groups = np.concatenate([epoch(sampler, e) for e in range(300)]).reshape(-1, images)
        owners = labels[groups]
        assert (owners == owners[:, :1]).all()
        assert repeats(owners[:, 0].reshape(-1, batch_size // images)) == 0
        assert_uniform(owners[:, 0], len(sizes))
        theory = float(facts["theory_share_groups_with_repeated_image"])
        assert abs(repeats(groups) - theory) <= 5 * np.sqrt(theory / len(groups)) + 1e-9
