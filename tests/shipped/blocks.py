"""Blocks of code on the pages of the documentation, and how they are run here.

A page's blocks run in their order in one folder, Python in one namespace, so that a page is a
program that a reader could type. What is cut is said in `SHORT` and `SMALL`; a line that says
`# needs:` is not run, nor are programs other than ours.
"""

import ast
import json
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from masquerade.laws import check

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from masquerade.cli import app as cli

ROOT = Path(__file__).parents[2]
NEEDS = "# needs:"
"""What stands in a line that cannot be run here, before what it needs."""

SHORT = ["--rounds", "1", "--set", "method.local_epochs=1", "--set", "compute.processes=1"]
SHORT += ["--set", "evaluate.draws=1"]
SMALL = ["--set", "data.fraction=0.2", "--clients", "5"]
"""What makes a training of a page one of a second; all else is as it stands there."""
TRAINS = ("run", "compare", "sweep")


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return a page's fenced blocks."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(*each) for each in found]


def lines(block: str) -> Iterator[list[str]]:
    """Yield the lines of a shell that are to be run, split into words."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words and NEEDS not in line:
            yield words


def shortened(text: str) -> str:
    """Return Python text that trains a round."""
    return re.sub(r"\brounds=\d+", "rounds=1", text)


def run_python(text: str, space: dict[str, Any]) -> None:
    """Run Python text as a part of a program of this process, which has its imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(shortened(text), "page", "exec"), space)


def run_line(words: list[str]) -> None:
    """Run a line of a shell, if it is of our command or of our examples.

    Servers and clients that run until they are stopped have tests of their own (tests/deploy).
    """
    variables = [word for word in words if re.match(r"[A-Z_]+=", word)]
    program, *given = words[len(variables) :]
    if program == "python" and given[0].startswith("examples/"):
        subprocess.run([sys.executable, ROOT / given[0], *given[1:]], check=True)
    if program == "masquerade" and given[0] != "deploy":
        small = SMALL * ("--data" not in given and "--clients" not in given)
        short = [*SHORT, *small] if given[0] in TRAINS else []
        if given[0] == "resume" and "--rounds" in given:
            # One more than what was shortened.
            short = ["--rounds", "2"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = CliRunner().invoke(cli.app, [*given, *short])
        assert done.exit_code == 0, (words, done.output, done.exception)


def prepare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process one that works in a folder, with a cache of its own."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MASQUERADE_CACHE", str(folder / "cache"))
    monkeypatch.setattr(sys, "argv", ["program"])
    # `mq.check` is shown to run; tests/laws has what it finds.
    monkeypatch.setattr(check, "LAWS", check.LAWS[:2])


def run(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the blocks of a page in a folder."""
    prepare(folder, monkeypatch)
    space: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            run_python(block.text, space)
        elif block.language == "sh":
            for words in lines(block.text):
                run_line(words)


def run_cells(notebook: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, short: bool) -> str:
    """Run a notebook's code in a folder, and return what its cells would show.

    The value of a cell's last line is asked for its HTML, as a notebook does.
    """
    prepare(folder, monkeypatch)
    space: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        text = "".join(cell["source"])
        body = ast.parse(shortened(text) if short else text).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(ast.Module(body, []), notebook.name, "exec"), space)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), notebook.name, "eval"), space)
                html = getattr(value, "_repr_html_", None)
                shown.append(html() if html else repr(value))
    return "\n".join(shown)
