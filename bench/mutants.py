"""Change the decoder in small ways, one at a time, and see which changes no short test notices.

    python -m bench.mutants                            # all of them; the survivors are listed
    python -m bench.mutants --only codec --every 5     # every fifth of one module
    MASQUERADE_FIGURES=1 python -m bench.mutants       # writes the figures, too

A mutant has one operator, number, condition or refusal changed. Each is put into a process that is
forked from this one, where tests are collected already, and which ends with the first that fails. A
mutant is killed where a test fails, or all together take much longer than without it.
"""

import argparse
import ast
import copy
import importlib
import json
import os
import signal
import time
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.reliability import publish

ROOT = Path(__file__).resolve().parents[1]

MODULES = ("codec", "bits")
TESTS = tuple(f"tests/wire/test_{name}.py" for name in ("attacks", "bits", "codec", "session"))
"""What `make coverage` runs."""
LONGER = 5
"""Times that tests may take with a mutant, as a multiple of what they take without."""

ONE_BYTE, NO_STEP = "of one byte the first is the last", "a step is read before it is used"
SIGN, LEVEL = "of `copysign` the sign alone counts", "a level is at least 1"
PIECE, REST = "pieces bound the memory alone", "numpy takes any negative size for what is left"
EQUIVALENT = {
    "codec._in_steps: `1.0` → `2.0`": "where there is no step, all values are zero",
    "codec._encode_tensor: `None if mask is None else _flat(mask)` → "
    "`None if False else _flat(mask)`": "what has bits of a mask has a mask",
    "codec._Reader.flag: `0` → `-1`": ONE_BYTE,
    "codec.decode: `0` → `-1`": "no byte is negative",
    "codec._decode_part: `if grain is not ENTRY:` → `if True:`": "an entry's mask is all of it",
    "codec._read_numbers: `1.0` → `2.0`": NO_STEP,
    "codec._read_numbers: `1.0` → `0.0`": NO_STEP,
    "codec._read_numbers: `math.copysign(1, step) > 0` → `math.copysign(1, step) >= 0`": SIGN,
    "codec._read_numbers: `1` → `2`": SIGN,
    "codec._read_numbers: `0` → `-1 (2)`": SIGN,
    "codec._read_numbers: `step * 127 > _LARGEST` → `step * 127 >= _LARGEST`": (
        "127 does not divide the largest float32"
    ),
    "bits.constants: `1` → `2 (4)`": PIECE,
    "bits.constants: `16` → `17 (2)`": PIECE,
    "bits.constants: `16` → `15 (2)`": PIECE,
    "bits.symbol_costs: `0` → `1`": LEVEL,
    "bits.symbol_costs: `0` → `-1`": LEVEL,
    "bits.symbol_costs: `0` → `1 (2)`": LEVEL,
    "bits.symbol_costs: `0` → `-1 (2)`": LEVEL,
    "bits.length: `1` → `2`": "one bit is packed, whatever coding it would cost",
    "bits._list: `1` → `2`": REST,
    "bits._listed: `1` → `2`": REST,
}
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
    """A module with one change, or with none."""

    module: str
    name: str
    source: str
    change: tuple[int, int] | None = None
    """The place among what can be changed, and which of its changes it is."""

    @property
    def tree(self) -> ast.Module:
        """Return the module as it is to be compiled."""
        tree = ast.parse(self.source)
        if self.change is not None:
            place, number = self.change
            _, node = _changeable(tree)[place]
            _Put(node, _changes(node)[number]).visit(tree)
        return ast.fix_missing_locations(tree)


def mutants(module: str, source: str) -> list[Mutant]:
    """Return all mutants of a module; those that are spelled alike are numbered."""
    found, times = list[Mutant](), Counter[str]()
    for place, (function, node) in enumerate(_changeable(ast.parse(source))):
        for number, new in enumerate(_changes(node)):
            was, now = (ast.unparse(each).partition("\n")[0] for each in (node, new))
            name = f"{module}.{function or 'constants'}: `{was}` → `{now}"
            times[name] += 1
            name += f" ({times[name]})`" if times[name] > 1 else "`"
            found.append(Mutant(module, name, source, (place, number)))
    return found


def unchanged(module: str) -> Mutant:
    """Return a module as it is."""
    return Mutant(module, "", _source(module))


def _source(module: str) -> str:
    return (ROOT / "src" / "masquerade" / "wire" / f"{module}.py").read_text(encoding="utf-8")


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
    there = importlib.import_module(f"masquerade.wire.{mutant.module}")
    code = compile(mutant.tree, str(there.__file__), "exec")
    made: dict[str, Any] = {"__name__": there.__name__, "__file__": there.__file__}
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


class Forking:
    """A plugin of pytest: tests are collected once, and run once for each mutant, in a fork."""

    def __init__(self, chosen: Iterable[Mutant]) -> None:
        self.chosen = chosen
        self.counted: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Have a failure end a test at once; how small it can be made is of no interest."""
        # Later than pytest, which makes assertions of it tell more; and than conftest's profile.
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", derandomize=True, database=None, phases=phases)
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all tests without a mutant, and then with each, those first that take least."""
        began = time.monotonic()
        seconds = self._timed(session)
        limit = max(20.0, LONGER * (time.monotonic() - began))
        session.items.sort(key=lambda item: seconds[item.nodeid])
        for each in self.chosen:
            self.counted["mutants"] += 1
            if each.name in EQUIVALENT:
                self.counted["equivalent"] += 1
                continue
            found = ended(_forked(session, each), limit)
            self.counted["survived" if found == "passed" else "killed"] += 1
            if found != "failed":
                print(f"{found}: {each.name}", flush=True)
        return True

    def _timed(self, session: pytest.Session) -> dict[str, float]:
        """Return the seconds of every test; without a mutant, all have to pass."""
        reading, writing = os.pipe()
        child = _forked(session, None, writing)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as file:
            said = file.read()
        if ended(child, 1.0) != "passed":
            raise SystemExit("the tests fail without any mutant")
        found: dict[str, float] = json.loads(said)
        return found


def _forked(session: pytest.Session, mutant: Mutant | None, out: int | None = None) -> int:
    """Run tests in a process of its own, up to the first that fails; return its number."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    seconds, status = dict[str, float](), 1
    try:
        # Without a mutant, what is put in is what is there, which must change nothing.
        for each in [mutant] if mutant is not None else map(unchanged, MODULES):
            install(each)
        for place, item in enumerate(session.items):
            began = time.monotonic()
            after = session.items[place + 1] if place + 1 < len(session.items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            seconds[item.nodeid] = time.monotonic() - began
            if session.testsfailed:
                break
        else:
            status = 0
        if out is not None:
            with os.fdopen(out, "w", encoding="utf-8") as file:
                file.write(json.dumps(seconds))
    finally:
        os._exit(status)


def ended(child: int, limit: float) -> str:
    """Wait for a process, so many seconds; return "passed", "failed" or "late"."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "passed" if status == 0 else "failed"
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "late"


def chosen(only: str | None, every: int) -> Iterator[Mutant]:
    """Yield the mutants that were asked for."""
    for module in MODULES if only is None else (only,):
        yield from mutants(module, _source(module))[::every]


def main() -> None:
    """Test the mutants, list the survivors, and write the figures if that is asked for."""
    parser = argparse.ArgumentParser(description="Test mutants of the decoder.")
    parser.add_argument("--only", choices=MODULES)
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    os.chdir(ROOT)
    forking = Forking(chosen(given.only, given.every))
    words = ["-s", "-q", "-p", "no:cacheprovider", "-m", "not drill", *TESTS]
    if status := pytest.main(words, plugins=[forking]):
        raise SystemExit(f"pytest ended with {status}")
    counted = forking.counted
    share = round(100 * counted["killed"] / (counted["killed"] + counted["survived"]), 1)
    print(f"{dict(counted)}, {share} % of those that mean something else were killed")
    if given.only is None and given.every == 1:
        names = ("mutants", "equivalent", "killed", "survived")
        figures = {name: counted[name] for name in names} | {"killed, %": share}
        publish("mutants", "python -m bench.mutants", figures)


if __name__ == "__main__":
    main()
