"""Tests are of the CPU, also where there is a GPU, unless they are marked with `cuda`."""

import os
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from masquerade.report import plots
from tests import messages

# The same examples every time: what passed once on this text passes again.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

# As a run sets it: processes that share the cores would wait for one another's threads.
torch.set_num_threads(1)

REWRITE = "--rewrite-messages"
NOTED = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes the golden file of messages anew."""
    parser.addoption(REWRITE, action="store_true", help="write tests/golden/messages.txt anew")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; rewrite messages by the tests that have some."""
    for item in items:
        if item.get_closest_marker("cuda") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs CUDA"))
    if config.getoption(REWRITE):
        items[:] = [item for item in items if "golden" in getattr(item, "fixturenames", ())]
        config.stash[NOTED] = {}


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the golden file where that was asked for, and all tests passed."""
    if NOTED in session.config.stash and exitstatus == 0:
        ran = {_key(item).split("::")[0] for item in session.items}
        messages.write(session.config.stash[NOTED], ran)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what every part took, the slowest first; CONTRIBUTING.md has the budgets."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                path = Path(report.nodeid.split("::")[0])
                seconds[path.parts[1] if len(path.parts) > 2 else "others"] += report.duration
    said = ", ".join(f"{part} {round(spent)}" for part, spent in seconds.most_common())
    terminalreporter.write_line(f"seconds by part: {said}")


def _key(item: pytest.Item) -> str:
    return item.nodeid.removeprefix("tests/")


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> messages.Golden:
    """Compare a message with its whole text in the golden file."""
    hides = {str(tmp_path): "TMP", str(Path(__file__).parents[1]): "ROOT"}
    hides |= {f"process {os.getpid()}": "process N", f"host {socket.gethostname()}": "host NAME"}
    hides[f"torch {torch.__version__}"] = "torch VERSION"
    return messages.Golden(_key(request.node), hides, request.config.stash.get(NOTED, None))


@pytest.fixture
def plain_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write pages without figures, which take most of their time, where none is looked at."""
    monkeypatch.setattr(plots, "figures", lambda *given: {})


FIGURES = plots.figures


@pytest.fixture
def drawn_pages(plain_pages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write pages with their figures all the same."""
    monkeypatch.setattr(plots, "figures", FIGURES)


@pytest.fixture(autouse=True, scope="session")
def _no_waiting() -> Iterator[None]:
    """Wait for no disk: no process sees that it did, and tests of the order of syncs watch them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True)
def _no_card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.get_closest_marker("cuda"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
