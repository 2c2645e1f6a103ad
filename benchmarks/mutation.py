"""Mutation testing: makes small mistakes in modules and configurations and counts how many their
tests notice.

    python -m benchmarks.mutation [--mutants=400] [--seed=0] [--jobs=2] [--only=losses/,configs/…]
    [--again] [--results=FILE]

A mutant is one changed comparison, arithmetic or boolean operator, condition, sign or constant of a
module of `mutated.csv`, or one changed value of a configuration: a number, or a word that another
configuration has for the same option. Each is written into a copy of the project, where the tests
of its module run, the nearest first, until one fails. Their process is forked after the imports of
JAX and pytest, which would otherwise take most of the time; mutmut forks after running tests, which
JAX's threads do not survive. Every outcome is appended to FILE at once, and what stands there is
not repeated, except for survivors with `--again`, after tests have changed. Survivors are listed to
be read: some do not matter (a tolerance, a tile size). 400 mutants take two hours on two cores;
needs requirements-dev.txt.
"""

import argparse
import ast
import compileall
import copy
import csv
import hashlib
import importlib
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 300  # of a processor for the tests of one mutant; a loop without end counts as noticed
LONGEST = 10 * SECONDS  # on the clock, if they wait for each other
with (ROOT / "benchmarks" / "mutated.csv").open(encoding="utf-8", newline="") as table:
    TESTS = {row["module"]: row["tests"] for row in csv.DictReader(table)}  # the nearest first
CARDS = "test_cards test_configs test_published test_papers lab/test_plan"
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
    """A mistake: the file, what changed at which line, and the changed source."""

    path: str
    change: str
    source: str


Words = dict[str, list[str]]  # by option: those that configurations have


def words_of_options() -> Words:
    """The words that configurations have for each option."""
    found: Words = {}
    for file in sorted(ROOT.glob("configs/**/*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.keyword(arg=str(name), value=ast.Constant(value=str(word))):
                    found.setdefault(name, []).append(word)
    return {name: sorted(set(words)) for name, words in found.items()}


def mutants(path: str, most: int, rng: random.Random, words: Words) -> list[Mutant]:
    """Up to `most` mutants of a file, sampled from all."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    words = words if path.startswith("configs/") else {}
    unseen = {
        id(inner) for node in ast.walk(tree) for part in _unseen(node) for inner in ast.walk(part)
    }
    places = [
        i
        for i, node in enumerate(ast.walk(tree))
        if id(node) not in unseen and _change(copy.deepcopy(node), words)
    ]
    chosen = sorted(rng.sample(places, min(most, len(places))))
    return [_mutant(path, tree, place, words) for place in chosen]


def _mutant(path: str, tree: ast.Module, place: int, words: Words) -> Mutant:
    changed = copy.deepcopy(tree)
    before, after = (
        next(itertools.islice(ast.walk(root), place, None)) for root in (tree, changed)
    )
    _change(after, words)
    texts = [ast.unparse(getattr(node, "test", node)) for node in (before, after)]
    change = f"line {getattr(before, 'lineno', 0)}: `{texts[0]}` → `{texts[1]}`"
    return Mutant(path, change, ast.unparse(changed))


def _change(node: ast.AST, words: Words) -> bool:
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
        case ast.keyword(arg=str(name), value=ast.Constant(value=str(word))) if (
            len(words.get(name, [])) > 1
        ):
            others = words[name]
            node.value = ast.Constant(others[(others.index(word) + 1) % len(others)])
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


def tests(path: str, folder: Path) -> list[str]:
    """The files of tests of a module or configuration in a copy, the nearest first."""
    parts = Path(path).with_suffix("").parts
    if parts[0] == "dml_jax":
        names = TESTS["/".join(parts[1:])].split()
    else:  # those of a paper are in a folder of its name, or end in its name
        paper = parts[1] if len(parts) > 2 else parts[-1].partition("_")[2]
        names = [*CARDS.split(), "config/test_facts", "config/test_needs", f"lab/test_{paper}"]
    files = [f"tests/{name}.py" for name in names]
    return [file for file in files if (folder / file).exists()]


def paths(only: Sequence[str]) -> list[str]:
    """The modules and all configurations whose path contains one of the texts."""
    modules = [f"dml_jax/{name}.py" for name in TESTS if (ROOT / f"dml_jax/{name}.py").exists()]
    configurations = sorted(str(file.relative_to(ROOT)) for file in ROOT.glob("configs/**/*.py"))
    return [path for path in [*modules, *configurations] if any(text in path for text in only)]


def sampled(chosen: Sequence[str], total: int, seed: int) -> list[Mutant]:
    """About `total` mutants, from each file in proportion to its length, and at least one."""
    rng, words = random.Random(seed), words_of_options()
    sizes = {path: len((ROOT / path).read_bytes()) for path in chosen}
    share = total / sum(sizes.values())
    drawn = [mutants(path, max(1, round(share * sizes[path])), rng, words) for path in chosen]
    found = [mutant for of_file in drawn for mutant in of_file]
    rng.shuffle(found)  # so that a run that was stopped is a sample, too
    return found


def copied(folder: Path) -> Path:
    """A copy of the project's files, compiled, without those that git ignores."""
    listed = ["git", "ls-files", "-co", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    compileall.compile_dir(folder, quiet=2)
    return folder


def start(path: str, folder: Path) -> int:
    """Starts the tests of a file in a forked process; returns the id of the process."""
    if pid := os.fork():
        return pid
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    with folder.with_suffix(".log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.chdir(folder)
    sys.path[:] = [str(folder), *(p for p in sys.path if p not in ("", str(ROOT)))]
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]
    import pytest

    os._exit(pytest.main(["-x", "-q", "-n0", "-p", "no:cacheprovider", *tests(path, folder)]))


class Outcome(NamedTuple):
    """Of the tests of a mutant: exit code (0: not noticed), seconds, the test that failed."""

    code: int
    seconds: int
    by: str


def run_all(
    selected: Sequence[Mutant], folders: Sequence[Path]
) -> Iterator[tuple[Mutant, Outcome]]:
    """Yields each mutant with its outcome; one runs at a time in each folder."""
    waiting, running = list(reversed(selected)), dict[int, tuple[Mutant, Path, float]]()
    free, times = list(folders), itertools.count(1)
    while waiting or running:
        while waiting and free:
            mutant, folder = waiting.pop(), free.pop()
            shutil.copy2(folder / mutant.path, folder.with_suffix(".kept"))
            (folder / mutant.path).write_text(mutant.source, encoding="utf-8")
            os.utime(folder / mutant.path, (next(times),) * 2)  # which no compiled file has
            running[start(mutant.path, folder)] = mutant, folder, time.monotonic()
        time.sleep(0.05)
        for pid, (mutant, folder, began) in list(running.items()):
            if late := time.monotonic() - began > LONGEST:
                os.killpg(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if done:
                del running[pid]
                shutil.copy2(folder.with_suffix(".kept"), folder / mutant.path)
                free.append(folder)
                text = folder.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
                failed = re.findall(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", text, re.MULTILINE)
                code, seconds = os.waitstatus_to_exitcode(status), time.monotonic() - began
                yield mutant, Outcome(code, round(seconds), failed[0] if failed else "")


def main() -> int:
    """Runs the mutants and prints the table; returns 1 if the tests of a file fail without a
    mistake."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {"mutants": 400, "seed": 0, "jobs": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", default="/", help="parts of paths, separated by commas")
    parser.add_argument("--again", action="store_true", help="repeat survivors")
    parser.add_argument("--results", type=Path, default=ROOT / ".cache" / "mutants.jsonl")
    options = parser.parse_args()
    results = options.results.resolve()
    results.parent.mkdir(parents=True, exist_ok=True)
    results.touch()
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    known = {row["digest"]: row["code"] for row in rows}
    selected = sampled(paths(options.only.split(",")), options.mutants, options.seed)
    todo = [
        mutant
        for mutant in selected
        if (code := known.get(digest(mutant))) is None or (options.again and code == 0)
    ]
    unchanged = [
        Mutant(path, "", (ROOT / path).read_text(encoding="utf-8"))
        for path in dict.fromkeys(mutant.path for mutant in todo)
    ]
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {
            # As in tests/conftest.py, which is imported after JAX has read them.
            "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.02",
            "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
            "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        for module in ("jax", "flax.linen", "optax", "scipy.stats", "sklearn.metrics", "pytest"):
            importlib.import_module(module)
        folders = [copied(Path(name, str(number))) for number in range(options.jobs)]
        first = {tuple(tests(mutant.path, folders[0])): mutant for mutant in unchanged}
        healthy = [mutant for mutant in first.values() if digest(mutant) not in known]
        for mutant, outcome in run_all([*healthy, *todo], folders):
            known[digest(mutant)] = outcome.code
            if not mutant.change and outcome.code:
                print(f"error: {mutant.path}: {outcome.by} fails without one", file=sys.stderr)
                return 1
            row = {"path": mutant.path, "change": mutant.change, "digest": digest(mutant)}
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row | outcome._asdict(), ensure_ascii=False) + "\n")
            word = "noticed" if outcome.code else "SURVIVED" if mutant.change else "passes"
            told = f"{outcome.seconds:4} s  {word}  {mutant.path}, {mutant.change}  {outcome.by}"
            print(told.rstrip(), flush=True)
    print("\n" + markdown([(mutant, known[digest(mutant)]) for mutant in selected]))
    return 0


def digest(mutant: Mutant) -> str:
    """The key of a tested mutant."""
    return hashlib.sha256(f"{mutant.path} {mutant.source}".encode()).hexdigest()[:16]


def markdown(outcomes: Sequence[tuple[Mutant, int]]) -> str:
    """The table by folder, and the survivors."""
    lines = ["| files | mutants | noticed | share |", "|---|--:|--:|--:|"]
    folders = ["/".join(Path(mutant.path).parts[:-1][:2]) for mutant, _ in outcomes]
    for name in (*dict.fromkeys(folders), "all"):
        chosen = zip(outcomes, folders, strict=True)
        codes = [code for (_, code), folder in chosen if name in (folder, "all")]
        noticed = sum(code != 0 for code in codes)
        lines.append(f"| {name} | {len(codes)} | {noticed} | {noticed / max(len(codes), 1):.0%} |")
    survivors = [f"- {mutant.path}, {mutant.change}" for mutant, code in outcomes if code == 0]
    return "\n".join([*lines, "", "Survivors:", "", *survivors]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
