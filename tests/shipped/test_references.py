"""Every path, symbol, setting, command and code that the documentation names is there."""

import re
from pathlib import Path

import pytest

from tests.shipped.references import ROOT, problems, read

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += sorted(ROOT.glob("docs/**/*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    found = problems(page)
    assert not found, "\n" + "\n".join(found)


def test_the_files_of_a_package_stand_in_it() -> None:
    rows = re.findall(r"^\| `(\w+/)` \| [^|]* \| ([^|]*) \|$", read(ROOT / "docs/design.md"), re.M)
    assert len(rows) > 15
    for package, listed in rows:
        for name in re.findall(r"`([\w/]+(?:\.py|/))`", listed):
            assert (ROOT / "src/masquerade" / package / name).exists(), f"{package}: no {name}"


def test_an_entry_of_the_log_has_a_question_a_command_a_result_and_a_decision() -> None:
    entries = re.split(r"^###? .*\n", read(ROOT / "docs/log.md"), flags=re.MULTILINE)
    entries = [entry.strip() for entry in entries if entry.startswith("\n- ")]
    assert len(entries) > 15
    for entry in entries:
        parts = re.findall(r"^- \*\*(\w+):\*\*", entry, re.MULTILINE)
        assert parts == ["Question", "Command", "Result", "Decision"], entry
        assert entry.count("\n") < 9, entry


RIGHT = """# A page

[Here](#a-page), [a file](other.md) and [its part](other.md#two-words-e201). Codes: E201, `W604`.

- Paths: `core/method.py`, `tests/papers`, `runs/PAPER/TABLE`, `ROW-seedN.json`, `metrics.jsonl`,
  `simulation/server.py: train`. Of others: `owner/name`. My own: `mine.npz`.
- Symbols: `mq.run`, `mq.Task(model, set_metrics=…)`, `Stage.masks`, `round.kind`, `Part.keep`,
  `core.random.Label`, `torch.func.vmap`, `masquerade.core`, `SGDStep`, `my_module`.
- Settings: `data.seed`, `train.rounds = 3`, `method.lr`, `method.fedprox.mu`, `method.KEY`.
- Commands: `masquerade run --set method.lr=0.1`, `pytest tests/laws -m "not drill"`, `make
  demo`, `python bench/engines.py`, `masquerade reproduce PAPER/TABLE --row ROW`.

    masquerade compare --methods fedavg,ditto --set 'evaluate.prior=["own"]'
    masquerade run --data mine.npz

```python
my_module = 1
```
| a table | may be as long as it has to be, because its rows cannot be broken, or so they say here |
"""
WRONG = {
    "[x](gone.md)": "gone.md: no such file",
    "[x](other.md#gone)": "other.md#gone: other.md has no heading with this anchor",
    "[x](#gone)": "#gone: page.md has no heading with this anchor",
    "It ends with E299.": "E299: docs/errors.md has no such code",
    "`W299`": "W299: docs/errors.md has no such code",
    "`core/gone.py`": "core/gone.py: no such file or folder",
    "`tests/gone`": "tests/gone: no such file or folder",
    "`gone-for-good.toml`": "gone-for-good.toml: no such file or folder",
    "`core/tree.py: gone`": "core/tree.py: gone: core/tree.py has no `gone`",
    "`mq.gone`": "mq.gone: no such symbol, module or setting",
    "`mq.Task(gone=…)`": "mq.Task(gone=…): `mq.Task` has no argument `gone`",
    "`Stage.gone`": "Stage.gone: no such symbol, module or setting",
    "`round.gone`": "round.gone: no such symbol, module or setting",
    "`masquerade.core.gone`": "masquerade.core.gone: no such symbol, module or setting",
    "`torch.gone_for_good`": "torch.gone_for_good: no such symbol, module or setting",
    "`data.gone`": "data.gone: no such symbol, module or setting",
    "`method.fedprox.gone`": "method.fedprox.gone: no such symbol, module or setting",
    "`GoneForGood`": "GoneForGood: no program has this word",
    "`masquerade vanish`": "masquerade vanish: `masquerade` has no command `vanish`",
    "`masquerade run --vanish`": "masquerade run --vanish: no option `--vanish`",
    "`masquerade run --set data.no=1`": "masquerade run --set data.no=1: no setting `data.no`",
    "`masquerade run --method gone`": "masquerade run --method gone: no method `gone`",
    "```sh\nmasquerade run --vanish\n```": "masquerade run --vanish: no option `--vanish`",
    "`python bench/gone.py`": "python bench/gone.py: no file `bench/gone.py`",
    "`python bench/engines.py --vanish`": (
        "python bench/engines.py --vanish: bench/engines.py has no option `--vanish`"
    ),
    "`pytest tests/gone`": "pytest tests/gone: no file `tests/gone`",
    "`make gone`": "make gone: no target `gone`",
    "many " * 25: "many many many many many many many many …: 124 columns, 100 at most",
}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """An empty page beside another one."""
    (tmp_path / "other.md").write_text("# Other\n\n## Two words: E201\n", encoding="utf-8")
    return tmp_path / "page.md"


def test_what_is_there_is_found(page: Path) -> None:
    page.write_text(RIGHT, encoding="utf-8")
    assert problems(page) == []


@pytest.mark.parametrize("text", WRONG)
def test_what_is_not_there_is_reported_with_file_and_line(text: str, page: Path) -> None:
    page.write_text(f"# A page\n\n{text.rstrip()}\n", encoding="utf-8")
    (found,) = problems(page)
    line = 4 if text.startswith("```") else 3
    assert found == f"page.md:{line}: {WRONG[text]}"
