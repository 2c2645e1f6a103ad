"""A data set of sentences, active and passive, as tokens int32 [12]. A class is what happens, "dog
calls cat"; other words do not matter, and bags of words cannot tell it from "cat calls dog"."""

import itertools

import numpy as np

from dml_jax.data.split import Split

ANIMALS = ["ant", "bear", "cat", "dog", "eel", "fox", "goat", "hen", "ibis", "jay"]
VERBS = ["call", "follow", "help", "pull"]
ADJECTIVES, ADVERBS = ["big", "old", "red", "shy"], ["again", "alone", "here", "today"]
WORDS = ["", "the", "is", "by", *ANIMALS, *ADJECTIVES, *ADVERBS]
WORDS += [verb + end for verb in VERBS for end in ("s", "ed")]
CLASSES = list(itertools.permutations(range(len(ANIMALS)), 2))


def sentence(event, rng):
    """A sentence about (verb, subject, object)."""
    verb, subject, target = event
    one, other = (f"the {rng.choice(['', *ADJECTIVES])} {ANIMALS[i]}" for i in (subject, target))
    active, passive = f"{one} {VERBS[verb]}s {other}", f"{other} is {VERBS[verb]}ed by {one}"
    return f"{rng.choice([active, passive])} {rng.choice(['', *ADVERBS])}".split()


def load(data):
    order = np.random.default_rng(0).permutation(len(CLASSES) // 2)
    pairs = [sorted(pair) for pair in itertools.combinations(range(len(ANIMALS)), 2)]
    events = [
        [(v, *pair) for i in part for v in range(len(VERBS)) for pair in (pairs[i], pairs[i][::-1])]
        for part in (order[15:], order[:15])  # test pairs of animals are not trained together
    ]

    def split(seed, events):
        labels = np.repeat(np.arange(len(events)), 12)

        def read(index, rng):
            words = sentence(events[labels[index]], np.random.default_rng((seed, index)))
            return np.array([*map(WORDS.index, words), *[0] * (12 - len(words))], np.int32)

        names = [f"{ANIMALS[s]} {VERBS[v]}s {ANIMALS[o]}" for v, s, o in events]
        return Split(labels, [f"{seed}-{i}" for i in range(len(labels))], read, names)

    return {"train": split(0, events[0]), "test": split(1, events[1])}
