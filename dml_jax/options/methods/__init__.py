"""Options of the methods, one module each, and what they share."""

from typing import Literal

Pooling = Literal["avg", "max", "avg+max"]  # of the feature map; "avg+max" is the sum of both
