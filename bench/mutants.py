"""Change the decoder in small ways, one at a time, and see which changes no short test notices.

    python -m bench.mutants                            # all of them; the survivors are listed
    python -m bench.mutants --only codec --every 5     # every fifth of one module
    MASQUERADE_FIGURES=1 python -m bench.mutants       # writes the figures, too

A mutant has one operator, number, condition or refusal changed. Each is put into a process that is
forked from this one, where all is imported already, and which ends with the first test that fails.
A mutant is killed where a test fails, or runs much longer than without it.
"""

import argparse
import ast
import copy
import io
import os
import signal
import sys
import time
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

MODULES = ("codec", "bits")
TESTS = tuple(f"tests/wire/test_{name}.py" for name in ("attacks", "bits", "codec", "session"))
"""What `make coverage` runs."""
LONGER = 5
"""Times that tests may take with a mutant, as a multiple of what they take without."""

EQUIVALENT: dict[str, str] = {}
"""Mutants that no test can notice, and why."""

Node = ast.expr | ast.stmt
COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
REPLACED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.LShift: ast.RShift,
    ast.BitXor: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    module: str
    function: str
    """Where the change is; empty for a constant of the module."""
    was: str
    now: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Say what was changed."""
        return f"{self.module}.{self.function or 'constants'}: `{self.was}` → `{self.now}`"


def mutants(module: str, source: str) -> list[Mutant]:
    """Return all mutants of a module; those that are spelled alike are numbered."""
    whole, found = ast.parse(source), list[Mutant]()
    for place, (function, _) in enumerate(_changeable(whole)):
        for number in range(len(_changes(_changeable(whole)[place][1]))):
            tree = copy.deepcopy(whole)
            node = _changeable(tree)[place][1]
            # What is larger than the change says where it is.
            was = ast.unparse(node)
            new = _changes(node)[number]
            _Put(node, new).visit(tree)
            now = ast.unparse(new)
            found.append(Mutant(module, function, was, now, ast.fix_missing_locations(tree)))
    times: Counter[str] = Counter()
    for place, each in enumerate(found):
        times[each.name] += 1
        if times[each.name] > 1:
            now = f"{each.now} ({times[each.name]})"
            found[place] = Mutant(each.module, each.function, each.was, now, each.tree)
    return found


def _changeable(tree: ast.Module) -> list[tuple[str, Node]]:
    """List expressions and statements that have an effect on what is read, with their functions.

    Texts of refusals are what a test of messages is for; annotations and docstrings do nothing.
    """
    found: list[tuple[str, Node]] = []

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)):
            return
        if isinstance(node, ast.ClassDef) and node.decorator_list:
            return
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            function = f"{function}.{node.name}".strip(".")
        if isinstance(node, (ast.expr, ast.stmt)):
            found.append((function, node))
        if isinstance(node, ast.Raise):
            return
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                for each in value if isinstance(value, list) else [value]:
                    if isinstance(each, ast.AST):
                        visit(each, function)

    visit(tree, "")
    return found


def _changes(node: Node) -> list[Any]:
    """Return what may stand in the place of a node."""
    match node:
        case ast.Compare():
            return [
                _with(node, ops=[*node.ops[:place], other(), *node.ops[place + 1 :]])
                for place, op in enumerate(node.ops)
                for other in COMPARED[type(op)]
            ]
        case ast.BinOp() if type(node.op) in REPLACED:
            return [_with(node, op=REPLACED[type(node.op)]())]
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            return [_with(node, op=other), *_without(node)]
        case ast.UnaryOp(ast.Not(), operand):
            return [operand]
        case ast.UnaryOp(ast.USub(), operand):
            return [operand]
        case ast.Constant(bool() as value):
            return [ast.Constant(not value)]
        case ast.Constant(int() | float() as value):
            return [ast.Constant(value + 1), ast.Constant(value - 1)]
        case ast.Call(ast.Name(name)) if name in SWAPPED:
            return [_with(node, func=ast.Name(SWAPPED[name], ast.Load()))]
        case ast.If() | ast.IfExp():
            tests = (ast.UnaryOp(ast.Not(), node.test), ast.Constant(False), ast.Constant(True))
            return [_with(node, test=test) for test in tests]
        case ast.Raise() | ast.AugAssign() | ast.Continue():
            return [ast.Pass()]
    return []


def _with(node: Any, **changes: Any) -> Any:
    other = copy.copy(node)
    for name, value in changes.items():
        setattr(other, name, value)
    return other


def _without(node: ast.BoolOp) -> list[ast.BoolOp]:
    """Return the same with one of its claims left out."""
    places = range(len(node.values))
    return [_with(node, values=[*node.values[:n], *node.values[n + 1 :]]) for n in places]


class _Put(ast.NodeTransformer):
    """Puts a node in the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


def install(mutant: Mutant) -> None:
    """Change a module that is imported: what others took from it is changed, too."""
    import importlib

    there = importlib.import_module(f"masquerade.wire.{mutant.module}")
    code = compile(mutant.tree, str(there.__file__), "exec")
    made: dict[str, Any] = {"__name__": there.__name__, "__file__": there.__file__}
    sys.modules.pop("__mutant__", None)
    exec(code, made)
    for name, new in made.items():
        _take_over(there.__dict__, name, getattr(there, name, None), new)


def _take_over(place: dict[str, Any], name: str, old: Any, new: Any) -> None:
    if name.startswith("__"):
        return
    if hasattr(old, "cache_clear"):
        old.cache_clear()
        old, new = old.__wrapped__, new.__wrapped__
    if isinstance(old, types.FunctionType):
        old.__code__, old.__defaults__ = new.__code__, new.__defaults__
        old.__kwdefaults__ = new.__kwdefaults__
    elif isinstance(old, type) and old.__module__ == place["__name__"]:
        for each, function in vars(new).items():
            if isinstance(function, types.FunctionType) and isinstance(
                vars(old).get(each), types.FunctionType
            ):
                vars(old)[each].__code__ = function.__code__
    elif isinstance(new, (int, float, bytes, tuple)):
        place[name] = new


def tested(mutant: Mutant | None, limit: float) -> str:
    """Run the tests in a process of its own; return "passed", "failed" or "late"."""
    child = os.fork()
    if not child:
        os.setsid()
        _test(mutant)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return "passed" if status == 0 else "failed"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "late"


def _test(mutant: Mutant | None) -> None:
    import pytest

    status = 1
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            if mutant is not None:
                install(mutant)
            words = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not drill", *TESTS]
            status = int(pytest.main(words))
    finally:
        os._exit(status)


def prepare() -> None:
    """Import what tests need, with settings under which a failure ends a test at once."""
    import importlib

    import torch
    from hypothesis import Phase, settings

    import tests.conftest  # noqa: F401

    torch.set_num_threads(1)
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", derandomize=True, database=None, phases=phases)
    settings.load_profile("mutants")
    os.chdir(ROOT)
    for test in TESTS:
        importlib.import_module(test.removesuffix(".py").replace("/", "."))


def chosen(only: str | None, every: int) -> Iterator[Mutant]:
    """Yield the mutants that were asked for."""
    for module in MODULES if only is None else (only,):
        path = ROOT / "src" / "masquerade" / "wire" / f"{module}.py"
        yield from mutants(module, path.read_text(encoding="utf-8"))[::every]


def main() -> None:
    """Test the mutants, list the survivors, and write the figures if that is asked for."""
    parser = argparse.ArgumentParser(description="Test mutants of the decoder.")
    parser.add_argument("--only", choices=MODULES)
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    prepare()
    began = time.monotonic()
    if tested(None, 600) != "passed":
        raise SystemExit("the tests fail without any mutant")
    limit = max(20.0, LONGER * (time.monotonic() - began))
    counted: Counter[str] = Counter()
    for each in chosen(given.only, given.every):
        counted["mutants"] += 1
        if each.name in EQUIVALENT:
            counted["equivalent"] += 1
            continue
        found = tested(each, limit)
        counted["survived" if found == "passed" else "killed"] += 1
        if found == "passed":
            print(f"survived: {each.name}", flush=True)
    decided = counted["killed"] + counted["survived"]
    share = round(100 * counted["killed"] / decided, 1)
    print(f"{dict(counted)}, {share} % of those that mean something else were killed")
    if given.only is None and given.every == 1:
        from tests.reliability import publish

        names = ("mutants", "equivalent", "killed", "survived")
        figures = {name: counted[name] for name in names} | {"killed, %": share}
        publish("mutants", "python -m bench.mutants", figures)


if __name__ == "__main__":
    main()
