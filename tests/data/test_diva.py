"""DiVA's sampler against its authors' code."""

import numpy as np
import pytest

from tests.golden.sampling import assert_uniform, build, cases, files, repeats


@pytest.mark.parametrize("name", files("samplers"))
def test_sampler(name: str) -> None:
    for case, facts in cases(name, "diva"):
        sizes, (batch_size, images) = facts["class_sizes"], (int(v) for v in facts["bs_k"])
        labels = np.repeat(np.arange(len(sizes)), sizes)
        sampler = build("with_replacement", sizes, batch_size, images)
        assert sampler.first_step(1) == facts["n_batches"], case
        batches = np.stack([sampler.batch(step) for step in range(1_000)])
        groups = batches.reshape(-1, images)
        owners = labels[groups]
        assert (owners == owners[:, :1]).all()
        assert_uniform(owners[:, 0], len(sizes))
        theory = float(facts["theory_share_groups_repeated_image"])
        assert abs(repeats(groups) - theory) <= 5 * np.sqrt(theory / len(groups)) + 1e-9
        distinct = np.array([len(set(row)) for row in owners[:, 0].reshape(1_000, -1).tolist()])
        mean = float(facts["theory_mean_distinct_classes"])
        assert abs(distinct.mean() - mean) <= 5 * distinct.std() / np.sqrt(1_000) + 1e-9
