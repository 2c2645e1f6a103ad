"""Tables over runs: numbers against independent computations, rankings, groups, formats; no training."""

import csv
import math
import re
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dml_jax import report
from dml_jax.studies import outcomes, summary, tables
from tests.studies.runs import hits, write_run
from tests.test_configs import resolved
from dataclasses import asdict


def config(**changed):  # noqa: ANN
    values = asdict(resolved("digits_hist"))
    values["method"] |= changed
    return values
