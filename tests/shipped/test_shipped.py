"""What stands beside the code: runs, examples and documents say only what works."""

import re
import subprocess
from pathlib import Path

import pytest

from masquerade.config.resolve import trainings
from masquerade.config.toml import parse, read_file
from masquerade.data import parse as parse_partition
from masquerade.models import MODELS

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
ELSEWHERE = re.compile(r"(?<![\w./-])/(?:work|root|home/\w+|tmp/dev)\b")
"""Paths that exist on one machine only."""


def files() -> list[Path]:
    """List what the repository holds, and what it will hold unless it is ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


LISTS = ("table.toml", "papers.toml")
RUNS = [path for path in sorted(ROOT.glob("runs/**/*.toml")) if path.name not in LISTS]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_every_run_can_be_read(path: Path) -> None:
    config = parse(read_file(path))
    assert trainings(config)
    assert parse_partition(config.data.partition)
    assert config.train.model in {"auto", *MODELS}


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
