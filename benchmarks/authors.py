"""Heads trained from scratch on half of Cars196 with many seeds, compared with the authors' code.

    dml-jax prepare --name=cars --source=cars196_half.zip --subset --output=data/cars
    python -m benchmarks.authors --data=data/cars --features=features --output=ours.json
        [--seeds=8] [--only=hist,mpn]

Each method trains its layer and its own parameters from its recipe's initial values, with its
losses, optimizer and sampler, on features of EfficientNet-Lite0 (the evaluation's crop only), which
are computed once; the last model is evaluated. Seeds that are in the output are not trained again.
`Case.authors` has the results of the authors' public code on the same features; the code was only
changed to run on a CPU. Writes the table "authors": whether the means are equivalent, by two
one-sided Welch tests over seeds, and whether seeds spread alike, by the F test, both corrected
(Holm).
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from scipy.stats import f, ttest_ind_from_stats

from benchmarks import tables
from benchmarks.claims import heads
from dml_jax.config.files import resolved
from dml_jax.console import Console
from dml_jax.lab import outcomes

METRICS = ("recall@1", "map@r", "nmi")
MARGINS = {"recall@1": 1.0, "map@r": 0.5}  # of equivalence, in points
LEVEL = 0.05
COLUMNS = (
    "method", "metric", "ours (seeds)", "authors' code", "difference", "margin", "p", "verdict",
    "spread, theirs ÷ ours", "p of the spread",
)  # fmt: skip
LITE0 = {
    "backbone.name": "efficientnet_lite",
    "backbone.pretrained": "lite0",
    "data.image_size": 224,  # MPN's 227, too: all share the features
    "data.interpolation": "bicubic",
    "train.feature_views": 1,
    "evaluation.batch_size": 32,
}
FROZEN = {"train.groups.backbone.freeze": True}


class Sample(NamedTuple):
    """Results in % of some seeds."""

    mean: float
    deviation: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.deviation:.2f} ({self.seeds})"


class Case(NamedTuple):
    """A method.

    Attributes:
      config: its recipe.
      overrides: of its length, and of a rate that is meant for the whole network.
      authors: results of the authors' code, by metric.
    """

    config: str
    overrides: Mapping[str, Any]
    authors: Mapping[str, Sample]


def roth(variant: str, authors: Mapping[str, Sample]) -> Case:
    """A loss by the shared recipe for 20 epochs; its rate of 1e-5 is too low for a layer alone."""
    overrides = {"train.epochs": 20, "train.groups.embedding.learning_rate": 1e-4}
    return Case(f"configs/cars_baseline.py:{variant}", FROZEN | overrides, authors)


_CASES = {
    "hist": Case(
        "configs/cars_hist.py",
        FROZEN | {"train.epochs": 10, "train.warmup_epochs": 0},
        {
            "recall@1": Sample(49.84, 0.54, 16),
            "map@r": Sample(7.65, 0.08, 16),
            "nmi": Sample(45.66, 0.46, 16),
        },
    ),
    "proxy_anchor": Case(
        "configs/cars_baseline.py:proxy_anchor",
        FROZEN | {"train.epochs": 15},  # after five of warm-up
        {
            "recall@1": Sample(51.09, 0.44, 8),
            "map@r": Sample(8.06, 0.07, 8),
            "nmi": Sample(46.1, 0.52, 8),
        },
    ),
    "multi_similarity": roth(
        "multi_similarity",
        {
            "recall@1": Sample(46.94, 0.9, 8),
            "map@r": Sample(7.87, 0.16, 8),
            "nmi": Sample(47.58, 0.44, 8),
        },
    ),
    "margin": roth(
        "margin",
        {
            "recall@1": Sample(46.92, 1.02, 8),
            "map@r": Sample(7.94, 0.14, 8),
            "nmi": Sample(47.77, 0.68, 8),
        },
    ),
    "triplet": roth(
        "triplet_distance_weighted",
        {
            "recall@1": Sample(44.96, 0.81, 8),
            "map@r": Sample(7.6, 0.11, 8),
            "nmi": Sample(47.99, 0.52, 8),
        },
    ),
    "mpn": Case(
        "configs/cars_mpn.py",
        FROZEN | {"train.epochs": 10},
        {
            "recall@1": Sample(46.83, 0.69, 8),
            "map@r": Sample(6.71, 0.09, 8),
            "nmi": Sample(43.55, 0.52, 8),
        },
    ),
    "diva": Case(
        "configs/cars_diva.py",
        FROZEN | {"train.epochs": 10, "train.groups.embedding.learning_rate": 1e-4},
        {
            "recall@1": Sample(48.78, 0.74, 8),
            "map@r": Sample(7.19, 0.11, 8),
            "nmi": Sample(44.41, 0.37, 8),
        },
    ),
}
ROOT = Path(__file__).parents[1]
CASES = {  # without those of a paper that has been deleted
    name: case for name, case in _CASES.items() if (ROOT / case.config.partition(":")[0]).is_file()
}


def trained(head: heads.Head, seed: int) -> dict[str, float]:
    """Results in % of a seed by metric, and "seconds" of training."""
    found, _ = head.results(seed, Console(quiet=True))
    return {metric: 100 * found[metric] for metric in METRICS} | found["timing"]


def equivalence(ours: Sample, theirs: Sample, margin: float) -> float:
    """The p-value of means that differ by `margin` or more, by two one-sided Welch tests
    (Schuirmann, 1987)."""

    def beyond(shift: float, alternative: str) -> float:
        shifted = ours._replace(mean=ours.mean + shift)
        options = {"equal_var": False, "alternative": alternative}
        return float(ttest_ind_from_stats(*shifted, *theirs, **options).pvalue)

    return max(beyond(margin, "greater"), beyond(-margin, "less"))


def spread(ours: Sample, theirs: Sample) -> float:
    """The p-value of equal deviations, by the F test of variances."""
    ratio = (ours.deviation / theirs.deviation) ** 2
    below = float(f.cdf(ratio, ours.seeds - 1, theirs.seeds - 1))
    return 2 * min(below, 1 - below)


def compared(results: Mapping[str, Mapping[str, Sample]]) -> list[list[str]]:
    """The rows of the table, with COLUMNS; p-values are corrected for their number (Holm)."""
    pairs = [
        (name, metric, found[metric], CASES[name].authors[metric])
        for name, found in results.items()
        for metric in MARGINS
    ]
    tests = [equivalence(ours, theirs, MARGINS[metric]) for _, metric, ours, theirs in pairs]
    spreads = [spread(ours, theirs) for *_, ours, theirs in pairs]
    return [
        [name, metric, str(ours), str(theirs), f"{ours.mean - theirs.mean:+.2f}",
         f"±{MARGINS[metric]:g}", outcomes.p_text(p), "equivalent" if p < LEVEL else "undecided",
         f"{theirs.deviation / ours.deviation:.1f}", outcomes.p_text(q)]
        for (name, metric, ours, theirs), p, q in zip(
            pairs, outcomes.holm(tests), outcomes.holm(spreads), strict=True
        )
    ]  # fmt: skip


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    flags.add_argument("--data", required=True, help="the prepared data set")
    flags.add_argument("--features", required=True, type=Path, help="folder for the features")
    flags.add_argument("--seeds", type=int, default=8)
    flags.add_argument("--only", default=",".join(CASES), help="methods separated by commas")
    flags.add_argument("--output", type=Path, required=True, help="JSON file of every seed")
    options = flags.parse_args()
    results: dict[str, dict[str, list[float]]] = {}
    if options.output.exists():
        results = json.loads(options.output.read_text(encoding="utf-8"))
    for name in options.only.split(","):
        case, found = CASES[name], results.setdefault(name, {})
        kept = {"data.path": options.data, "train.features": str(options.features)}
        overrides = {**LITE0, **kept, **case.overrides}
        done = len(found.get("seconds", []))
        if done >= options.seeds:
            continue
        _, head = heads.Bench().prepare(resolved(case.config, overrides))
        for seed in range(done, options.seeds):
            for key, value in trained(head, seed).items():
                found.setdefault(key, []).append(value)
            options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(f"{name}, seed {seed}: {found['seconds'][-1]:.0f} s", flush=True)
    samples = {
        name: {key: Sample(mean(found[key]), stdev(found[key]), len(found[key])) for key in MARGINS}
        for name, found in results.items()
    }
    tables.write("authors", "python -m benchmarks.authors", COLUMNS, compared(samples))


if __name__ == "__main__":
    main()
