"""Mutation testing: makes small mistakes in a module and counts how many its own tests notice.

    python -m benchmarks.mutation [--mutants=300] [--seed=0] [--jobs=2] [--only=losses/pairwise,…]
    [--output=FILE]

A mutant is one changed comparison, arithmetic or boolean operator, condition, sign or constant.
Each runs the module's tests in a process that is forked after the imports of JAX and pytest, which
would otherwise take most of the time; mutmut forks after running tests, which JAX's threads do not
survive. Survivors are listed to be read: some are no mistakes (a tolerance, a tile size). A mutant
takes as long as the module's tests, seconds to a minute; needs requirements-dev.txt.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 300.0  # for the tests of one mutant; a loop without end counts as noticed
# By module: its tests.
TESTS = {
    "numerics": ("test_numerics", "losses/test_duplicates", "train/test_precision"),
    "losses/classification": ("losses/test_classification", "losses/test_public"),
    "losses/cross_batch_memory": ("losses/test_public", "methods/test_baseline"),
    "losses/mining": ("losses/test_mining", "golden/test_losses"),
    "losses/pair_losses": (
        "losses/test_pair_losses",
        "losses/test_public",
        "losses/test_weights",
        "golden/test_losses",
    ),
    "losses/pairwise": ("losses/test_weights", "losses/test_duplicates", "losses/test_close_rows"),
    "losses/proxies": ("losses/test_public", "methods/test_baseline"),
    "losses/ranking": ("losses/test_ranking", "losses/test_public"),
    "losses/similarity_losses": ("losses/test_similarity_losses", "losses/test_public"),
    "evaluation/metrics": (
        "evaluation/test_retrieval",
        "evaluation/test_validation",
        "evaluation/test_package",
    ),
    "evaluation/_engine/query_metrics": ("evaluation/test_relevance", "evaluation/test_retrieval"),
    "evaluation/validation": ("evaluation/test_relevance", "evaluation/test_validation"),
    "evaluation/open_set": ("evaluation/test_open_set",),
    "evaluation/expectations": ("evaluation/test_expectations",),
    "evaluation/neighbors": ("evaluation/test_neighbors",),
    "evaluation/clustering": ("evaluation/test_clustering",),
    "evaluation/geometry": ("evaluation/test_geometry",),
    "data/samplers/base": ("data/test_samplers",),
    "data/samplers/published": ("data/test_samplers", "golden/test_transforms"),
    "train/checkpoint": ("train/test_checkpoint", "train/test_loop"),
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.MatMult: ast.Add,
}


class Mutant(NamedTuple):
    """A mistake: the module, what changed at which line, and the changed source."""

    module: str
    change: str
    source: str


def mutants(module: str, most: int, rng: random.Random) -> list[Mutant]:
    """Up to `most` mutants of a module, sampled from all."""
    tree = ast.parse((ROOT / "dml_jax" / f"{module}.py").read_text(encoding="utf-8"))
    unseen = {
        id(inner) for node in ast.walk(tree) for part in _unseen(node) for inner in ast.walk(part)
    }
    places = [
        i
        for i, node in enumerate(ast.walk(tree))
        if id(node) not in unseen and _change(copy.deepcopy(node))
    ]
    return [
        _mutant(module, tree, place) for place in sorted(rng.sample(places, min(most, len(places))))
    ]


def _mutant(module: str, tree: ast.Module, place: int) -> Mutant:
    changed = copy.deepcopy(tree)
    before, after = (
        next(itertools.islice(ast.walk(root), place, None)) for root in (tree, changed)
    )
    _change(after)
    texts = [ast.unparse(getattr(node, "test", node)) for node in (before, after)]
    return Mutant(
        module,
        f"line {getattr(before, 'lineno', 0)}: `{texts[0]}` → `{texts[1]}`",
        ast.unparse(changed),
    )


def _change(node: ast.AST) -> bool:
    """Changes a node; returns whether there was something to change."""
    match node:
        case ast.Compare(ops=[first, *_]) if type(first) in COMPARISONS:
            node.ops[0] = COMPARISONS[type(first)]()
        case ast.BinOp(op=operator) if type(operator) in OPERATORS:
            node.op = OPERATORS[type(operator)]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        # A plus keeps numbers and the truth of booleans, so this removes the operator.
        case ast.UnaryOp():
            node.op = ast.UAdd()
        case ast.If() | ast.While() | ast.IfExp():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant(value=int() | float()):
            node.value += 1
        case _:
            return False
    return True


def _unseen(node: ast.AST) -> list[ast.AST]:
    """Parts of a node that no test should depend on: types and error messages."""
    match node:
        case (
            ast.AnnAssign(annotation=kind)
            | ast.arg(annotation=kind)
            | ast.FunctionDef(returns=kind)
        ):
            return [kind] if kind else []
        case ast.Raise():
            return [node]
        case _:
            return []


class Replaced(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the mutant instead of the module."""

    def __init__(self, mutant: Mutant) -> None:
        self.name, self.source = f"dml_jax.{mutant.module.replace('/', '.')}", mutant.source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        file = str(ROOT / f"{self.name.replace('.', '/')}.py")
        return (
            importlib.util.spec_from_file_location(fullname, file, loader=self)
            if fullname == self.name
            else None
        )  # type: ignore[arg-type]

    def exec_module(self, module: ModuleType) -> None:
        code = compile(self.source, str(module.__file__), "exec")
        exec(code, module.__dict__)


def start(mutant: Mutant) -> int:
    """Starts the tests of a module on its mutant in a forked process; returns the id of the
    process."""
    if pid := os.fork():
        return pid
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    sys.meta_path.insert(0, Replaced(mutant))
    import pytest

    files = [f"tests/{name}.py" for name in TESTS[mutant.module]]
    os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *files]))


def run_all(selected: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, int, float]]:
    """Yields each mutant with the exit code of its tests (0: not noticed) and the seconds that they
    took."""
    waiting, running = list(reversed(selected)), dict[int, tuple[Mutant, float]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            running[start(mutant)] = mutant, time.monotonic()
        time.sleep(0.05)
        for pid, (mutant, began) in list(running.items()):
            if time.monotonic() - began > SECONDS:
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del running[pid]
                yield mutant, os.waitstatus_to_exitcode(status), time.monotonic() - began


def sampled(modules: Sequence[str], total: int, seed: int) -> list[Mutant]:
    """About `total` mutants, from each module in proportion to its length."""
    rng = random.Random(seed)
    lengths = {module: len((ROOT / "dml_jax" / f"{module}.py").read_bytes()) for module in modules}
    share = total / sum(lengths.values())
    return [
        mutant
        for module in modules
        for mutant in mutants(module, max(1, round(share * lengths[module])), rng)
    ]


def main() -> int:
    """Runs the mutants and prints the table; returns 1 if a module's tests fail without a
    mistake."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {"mutants": 300, "seed": 0, "jobs": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", default=",".join(TESTS), help="modules, separated by commas")
    parser.add_argument("--output", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    modules = options.only.split(",")
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as cache:
        # As in tests/conftest.py, which is imported after JAX has read this number.
        os.environ |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_NUM_CPU_DEVICES": "8"}
        for name in ("jax", "flax.linen", "optax", "scipy.stats", "sklearn.metrics", "pytest"):
            importlib.import_module(name)
        unchanged = [
            Mutant(name, "", (ROOT / "dml_jax" / f"{name}.py").read_text(encoding="utf-8"))
            for name in modules
        ]
        for mutant, code, seconds in run_all(unchanged, options.jobs):
            print(f"{mutant.module}: tests take {seconds:.0f} s", flush=True)
            if code:
                print(
                    f"error: the tests of {mutant.module} fail without a mistake", file=sys.stderr
                )
                return 1
        outcomes = []
        for mutant, code, seconds in run_all(
            sampled(modules, options.mutants, options.seed), options.jobs
        ):
            outcomes.append((mutant, code))
            print(
                f"{seconds:4.0f} s  {'noticed' if code else 'SURVIVED'}  {mutant.module}, "
                f"{mutant.change}",
                flush=True,
            )
    text = markdown(modules, outcomes)
    print(f"\n{text}")
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    return 0


def markdown(modules: Sequence[str], outcomes: Sequence[tuple[Mutant, int]]) -> str:
    """The table by module, and the survivors."""
    lines = ["| module | mutants | noticed | share |", "|---|--:|--:|--:|"]
    for name in (*modules, "all"):
        codes = [code for mutant, code in outcomes if name in (mutant.module, "all")]
        noticed = sum(code != 0 for code in codes)
        lines.append(f"| {name} | {len(codes)} | {noticed} | {noticed / max(len(codes), 1):.0%} |")
    survivors = [f"- {mutant.module}, {mutant.change}" for mutant, code in outcomes if code == 0]
    return "\n".join([*lines, "", "Survivors:", "", *survivors]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
