"""Options of classifying images by enrolled ones: the rules, and their defaults."""

from typing import Literal, get_args

Rule = Literal["nearest", "vote", "mean"]
RULES: tuple[Rule, ...] = get_args(Rule)
VOTES = 5  # nearest images that vote
FALSE_ACCEPT_RATE = 0.05
