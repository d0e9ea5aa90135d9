"""What tests do not do: pin wording, count off settings, reach for what is private, hold always."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOREIGN = {"_exit", "_C", "_functorch", "_schema", "_BatchNorm", "_repr_html_"}
"""Names of Python and torch; tests/test_torch.py has those that the library rests on."""
SETTINGS = {"Data", "Train", "Evaluate", "Compute"}
ERRORS = {"MasqueradeError", "MasqueradeWarning"}


def private(name: object) -> bool:
    """Whether a name, or the last one of a path, is private."""
    last = name.rpartition(".")[2] if isinstance(name, str) else ""
    return last.startswith("_") and not last.startswith("__") and last not in FOREIGN


def last_name(node: ast.AST) -> str:
    """Return the last name of what is called or looked up."""
    return ast.unparse(node).rpartition(".")[2]


def faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the lines of a test that do what tests do not do."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            # What a class of the test itself keeps to itself is its own affair.
            if ast.unparse(node.value) not in ("self", "super()"):
                yield node.lineno, f"{node.attr} is private"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("masquerade"):
            yield from (
                (node.lineno, f"{a.name} is private") for a in node.names if private(a.name)
            )
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, fault) for fault in faults_of_call(node))
        elif isinstance(node, ast.Assert) and always(node.test):
            yield node.lineno, "this always holds"


def always(claim: ast.expr) -> bool:
    """Whether a claim holds whatever the code does: a constant, or one of several that is one."""
    if isinstance(claim, ast.BoolOp) and isinstance(claim.op, ast.Or):
        return any(map(always, claim.values))
    return isinstance(claim, ast.Constant) and bool(claim.value)


def faults_of_call(call: ast.Call) -> Iterator[str]:
    """Yield what is wrong with a call."""
    name, words = last_name(call.func), {each.arg for each in call.keywords}
    if name in SETTINGS and call.args:
        yield f"{name} is given settings without their names"
    expected = {last_name(each) for each in call.args[:1]}
    if name in ("raises", "warns") and "match" in words and expected & ERRORS:
        yield "wording is pinned; tests.support has raises(CODE, *named), and warns"
    if name in ("setattr", "getattr", "delattr", "patch"):
        texts = [each.value for each in call.args[:2] if isinstance(each, ast.Constant)]
        yield from (f"{text} is private" for text in texts if private(text))


@pytest.mark.parametrize(
    "text",
    [
        "engine._shared",
        "module.thing()._name = 1",
        "from masquerade.wire.bits import _level",
        "monkeypatch.setattr(Batched, '_chunk', small)",
        "monkeypatch.setattr('masquerade.engine.loop._do', small)",
        "mq.Evaluate(0)",
        "Train('', 3, 4)",
        "pytest.raises(MasqueradeError, match='E302 no finite number')",
        "pytest.warns(mq.MasqueradeWarning, match='W301')",
        "assert True",
        "assert found == 3 or 'close enough'",
    ],
)
def test_a_planted_fault_is_found(text: str) -> None:
    assert len(list(faults(ast.parse(text)))) == 1


def test_tests_do_none_of_it() -> None:
    found = [
        f"{path.relative_to(HERE)}:{line}: {fault}"
        for path in sorted(HERE.rglob("*.py"))
        if path.name != "support.py"
        for line, fault in faults(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []
