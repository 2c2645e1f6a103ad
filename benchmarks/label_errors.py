"""Finds planted label errors by class means, compared with cleanlab.

    pip install cleanlab
    python -m benchmarks.label_errors photos/ cars/ [--shares=0.02,0.05,0.1] [--draws=3]

Of each folder of classes, a random share of the images gets the label of another class. Embeddings
are by --model, and kept in --cache. It prints for each draw the average precision of
`doubtful_labels`, and that of cleanlab (the better of its two scores of labels) from logistic
regression on five folds with each constant. For the labels that are wrong with a probability of at
least 0.5, it prints the sum of the probabilities, how many are wrong, and their number.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

import dml_jax
from dml_jax import table
from dml_jax.data import formats
from dml_jax.evaluation import doubtful_labels
from dml_jax.inference import bulk_embedding

CONSTANTS, SCORES = (1.0, 10.0), ("self_confidence", "normalized_margin")


def embedded(folder: str, model: str, cache: Path) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings float32 [N, D] and labels int [N] of class folders."""
    classes = formats.class_folders([folder])
    label_of = {str(file): i for i, files in enumerate(classes.values()) for file in files}
    directory = cache / Path(folder).resolve().name
    found = table.read(directory) if directory.is_dir() else None
    if found is None:
        engine = bulk_embedding.local_engine(dml_jax.load(model))
        found = bulk_embedding.embed_files(engine, [*label_of], directory)
    return np.array(found.embeddings), np.array([label_of[name] for name in found.ids])


def planted(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Labels of which a share is another class, at random."""
    rng, count = np.random.default_rng(seed), labels.max() + 1
    chosen = rng.permutation(len(labels))[: round(share * len(labels))]
    made = labels.copy()
    made[chosen] = (labels[chosen] + rng.integers(1, count, len(chosen))) % count
    return made


def peer(rows: np.ndarray, labels: np.ndarray, wrong: np.ndarray, constant: float) -> float:
    """Average precision of cleanlab."""
    from cleanlab.rank import get_label_quality_scores

    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    classifier = LogisticRegression(C=constant, max_iter=400)
    rows = rows - rows.mean(axis=0)
    shares = cross_val_predict(classifier, rows, labels, cv=folds, method="predict_proba")
    qualities = (get_label_quality_scores(labels, shares, method=name) for name in SCORES)
    return max(average_precision_score(wrong, -quality) for quality in qualities)


def main() -> None:
    """Prints a line for each draw."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("folders", nargs="+")
    flags.add_argument("--model", default="lite0")
    flags.add_argument("--cache", type=Path, default=Path("label_errors"))
    flags.add_argument("--shares", default="0.02,0.05,0.1")
    flags.add_argument("--draws", type=int, default=3)
    options = flags.parse_args()
    print("folder, share, draw: class means; cleanlab, C =", ", ".join(map(str, CONSTANTS)))
    for folder in options.folders:
        rows, right = embedded(folder, options.model, options.cache)
        spread = doubtful_labels.spread(rows)
        for share in map(float, options.shares.split(",")):
            for seed in range(options.draws):
                labels = planted(right, share, seed)
                wrong = labels != right
                doubt = doubtful_labels.find(spread, labels).doubt
                ours = average_precision_score(wrong, doubt)
                probability = doubtful_labels.calibrate(spread, labels, doubt)
                assert probability is not None
                chances = probability(doubt)
                likely = chances >= 0.5
                peers = [peer(rows, labels, wrong, constant) for constant in CONSTANTS]
                print(
                    f"{folder}, {share:.0%}, {seed}: {ours:.3f};",
                    ", ".join(f"{value:.3f}" for value in peers),
                    f"| likely: {chances[likely].sum():.0f} expected, {wrong[likely].sum()} wrong, "
                    f"{likely.sum()} in all; all {chances.sum():.0f} expected, {wrong.sum()} wrong",
                    flush=True,
                )


if __name__ == "__main__":
    main()
