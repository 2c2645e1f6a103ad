"""HIST: the search of its reproduction (Yuan et al., MLRC 2022, Tables 5 and 6).

There is one variant per data set for ResNet-50, and one for BN-Inception. The reproduction trained
about 200 settings per backbone (30 on SOP) for 60 epochs each with a Bayesian search, and compared
them on the test classes (`--protocol=paper`). The default here is 60 settings.

    dml-jax study --study=hist/search
"""

from dml_jax.lab.definition import Search, Study

LAMBDA_S = (0.5, 0.8, 1.0, 1.2, 1.5)
BATCH_SIZE = (8, 16, 32)
SPACES: dict[str, tuple[tuple[float, ...], ...]] = {  # lambda_s, alpha, tau
    "cars": (LAMBDA_S[:-1], (0.9, 0.95, 1.0, 1.1, 1.2), (16.0, 20.0, 24.0, 28.0, 32.0)),
    "cub": (LAMBDA_S, (0.9, 0.95, 1.0, 1.05, 1.15), (16.0, 20.0, 24.0, 28.0, 32.0, 36.0)),
    "sop": (LAMBDA_S, (1.9, 1.95, 2.0, 2.1, 2.15), (12.0, 14.0, 16.0, 20.0, 22.0, 24.0)),
    "cars-bn_inception": (LAMBDA_S, (0.9, 0.95, 1.0, 1.1, 1.15), (16.0, 20.0, 22.0, 28.0, 32.0)),
    "cub-bn_inception": (
        LAMBDA_S,
        (0.9, 0.95, 1.0, 1.05, 1.15),
        (16.0, 20.0, 24.0, 28.0, 32.0, 36.0),
    ),
    "sop-bn_inception": (
        LAMBDA_S,
        (1.5, 1.55, 1.6, 1.65, 1.7, 1.75),
        (12.0, 14.0, 16.0, 20.0, 22.0, 24.0),
    ),
    "omniglot": (LAMBDA_S, (0.9, 0.95, 1.0, 1.1, 1.2), (2.5, 5.0, 10.0, 15.0, 20.0)),
}
VARIANTS = tuple(SPACES)


def get_study(variant: str = "cars") -> Study:
    data, _, backbone = variant.partition("-")
    lambda_s, alpha, tau = SPACES[variant]
    space = {"method.lambda_s": lambda_s, "method.alpha": alpha, "method.tau": tau}
    length = {}
    if data != "omniglot":  # whose sampler needs a multiple of the images per class
        space["data.batch_size"] = BATCH_SIZE
        length["train.epochs"] = 60  # as in the reproduction's search
    config = f"configs/{data}_hist.py" + (f":{backbone}" if backbone else "")
    return Study(
        title=f"HIST, search of tau, alpha, lambda_s and the batch size: {variant}",
        source="Reproduction, Tables 5 and 6; the values that it found are the variants `retuned`.",
        search=Search(config, space, lambda values: {**values, **length}, trials=60),
    )
