"""What stands beside the code: runs, examples and documents say only what works."""

import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from masquerade.config.resolve import trainings
from masquerade.config.toml import parse, read_file
from masquerade.data import parse as parse_partition
from masquerade.laws import check
from masquerade.models import MODELS
from masquerade.report import plots

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from masquerade.cli import app as cli

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
ELSEWHERE = re.compile(r"(?<![\w./-])/(?:work|root|home/\w+|tmp/dev)\b")
"""Paths that exist on one machine only."""


def files() -> list[Path]:
    """List what the repository holds, and what it will hold unless it is ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def blocks(language: str, page: Path = README) -> list[str]:
    """Return a page's blocks of code in a language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(program: str) -> Iterator[list[str]]:
    """Yield the README's lines that call a program, split into words."""
    for block in blocks("(?:sh|bash|console)"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words and words[0].endswith(program):
                yield words


def execute(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run Python text as a program of this process, which has its imports; it trains a round.

    README's own `python` line is run as a process, in the test of its commands.
    """
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["program"])
    # `mq.check` is shown to run; tests/laws has what it finds.
    monkeypatch.setattr(check, "LAWS", check.LAWS[:2])
    short = re.sub(r"\brounds=\d+", "rounds=1", text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(short, "program", "exec"), {"__name__": "__main__"})


LISTS = ("table.toml", "papers.toml")
RUNS = [path for path in sorted(ROOT.glob("runs/**/*.toml")) if path.name not in LISTS]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_every_run_can_be_read(path: Path) -> None:
    config = parse(read_file(path))
    assert trainings(config)
    assert parse_partition(config.data.partition)
    assert config.train.model in {"auto", *MODELS}


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.name)
def test_every_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(path.read_text(encoding="utf-8"), tmp_path, monkeypatch)


# Tests of pages draw figures; here they would take half of the time.
@pytest.mark.usefixtures("plain_pages")
def test_the_python_of_the_pages_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [blocks("python", page) for page in (README, ROOT / "docs" / "python.md")]
    assert all(pages)
    execute("\n".join(block for found in pages for block in found), tmp_path, monkeypatch)


SHORT = ["--rounds", "1", "--set", "method.local_epochs=1", "--set", "compute.processes=1"]
SHORT += ["--set", "evaluate.draws=1"]
SMALL = ["--set", "data.fraction=0.2", "--clients", "5"]
"""What makes a training of the README one of a second; all else is as it stands there."""


@pytest.mark.filterwarnings("ignore:W308")
def test_the_commands_of_the_readme_run_in_their_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MASQUERADE_CACHE", str(tmp_path / "cache"))
    # Servers and clients that run until they are stopped have tests of their own (tests/deploy).
    lines = [words for words in commands("masquerade") if words[1] != "deploy"]
    assert {"run", "compare", "resume", "report", "methods", "data", "export", "predict"} <= {
        words[1] for words in lines
    }
    for program, *given in commands("python"):
        subprocess.run([sys.executable, ROOT / given[0], *given[1:]], check=True)
        assert program == "python"
    for words in lines:
        trains = words[1] in ("run", "compare")
        short = SHORT + SMALL * ("--data" not in words) if trains else []
        done = CliRunner().invoke(cli.app, [*words[1:], *short])
        assert done.exit_code == 0, (words, done.output, done.exception)
        # Figures of the first page are drawn; those of the others would take as long again.
        monkeypatch.setattr(plots, "figures", lambda *given: {})
    assert (tmp_path / "out" / "hospital" / "report.html").is_file()
    assert (tmp_path / "out" / "compare-1" / "results.json").is_file()


def test_the_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    named = {word for words in commands("make") for word in words[1:] if "=" not in word}
    assert {"demo"} <= named <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(<?([^)\s>]+)>?(?:\s[^)]*)?\)", text)
    targets += re.findall(r"""(?:src|href)=["']([^"']+)""", text)
    inner = [target.partition("#")[0] for target in targets if not re.match(r"\w+:", target)]
    assert [target for target in inner if not (page.parent / target).exists()] == []


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    found = files()
    assert len(found) > 50
    text = {file: file.read_text("utf-8", errors="replace") for file in found}
    assert [str(file) for file in found if ELSEWHERE.search(text[file])] == []
