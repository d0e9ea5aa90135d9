"""Progress is shown where somebody sees it: in a terminal, in a notebook, and nowhere else."""

import io
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from rich.live import Live

import masquerade as mq
from masquerade.experiments import progress
from tests.support import federation, network

METHODS = [mq.methods.FedAvg(local_epochs=1), mq.methods.Local(local_epochs=1)]


class Terminal(io.StringIO):
    """Something that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Displays(ModuleType):
    """What IPython offers to show things in the output of a cell."""

    def __init__(self) -> None:
        super().__init__("IPython.display")
        self.shown: list[str] = []
        self.HTML = str

    def display(self, what: str, display_id: bool) -> SimpleNamespace:
        assert display_id
        self.shown.append(what)
        return SimpleNamespace(update=self.shown.append)


def compare(**more: object) -> mq.Comparison:
    return mq.compare(METHODS, network(), federation(), 2, batch_size=4, **more)  # type: ignore[arg-type]


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Displays:
    ipython, displays = ModuleType("IPython"), Displays()
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    monkeypatch.setattr(progress, "BETWEEN", 0.0)
    return displays


def test_a_program_in_a_pipe_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    compare()
    assert tuple(capfd.readouterr()) == ("", "")


def test_a_terminal_has_a_bar_on_stderr_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    found = compare()
    own = found.summaries[-1].accuracy.own.mean
    text = terminal.getvalue()
    assert "round 2 of 2" in text
    # What it ends with is the figure of the table.
    last = [line for line in text.splitlines() if "on own data" in line][-1]
    assert f", accuracy {own:.1f} on own data" in last
    assert capsys.readouterr().out == ""
    terminal.truncate(0)
    compare(progress=False)
    assert terminal.getvalue().strip("\0") == ""


def test_the_classifier_is_silent_unless_asked(notebook: Displays) -> None:
    x, y, groups = np.eye(4), [0, 1, 0, 1], [0, 0, 1, 1]
    mq.PersonalizedClassifier("fedavg", rounds=1).fit(x, y, groups)
    assert not notebook.shown
    mq.PersonalizedClassifier("fedavg", rounds=1, verbose=True).fit(x, y, groups)
    assert notebook.shown


def test_what_fails_before_the_first_round_leaves_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(ValueError, match="early"), progress.in_terminal():
        raise ValueError("early")
    assert "preparing" not in terminal.getvalue()


def test_a_display_of_the_program_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    console = Console(file=Terminal())
    with Live(console=console, auto_refresh=False), progress.shown(True) as told:
        # With either answer of rich, one display in another or none, the program goes on.
        assert len(told) <= 1


def test_a_notebook_has_one_display_that_is_updated(
    notebook: Displays, capfd: pytest.CaptureFixture[str]
) -> None:
    found = compare()
    shares = [float(each.split('"')[1]) for each in notebook.shown[1:]]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert f"{found.summaries[-1].accuracy.own.mean:.1f} on own data" in notebook.shown[-1]
    assert tuple(capfd.readouterr()) == ("", "")


def test_a_notebook_is_not_sent_more_than_it_can_show(
    notebook: Displays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "BETWEEN", 1e6)
    show = progress.in_notebook(notebook)
    for done in range(100):
        show("<fedavg>", done / 100, "")
    show("<fedavg>", 1.0, "")
    assert len(notebook.shown) <= 3
    assert "&lt;fedavg&gt;" in notebook.shown[-1]


def test_an_interactive_shell_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = ModuleType("IPython")
    ipython.get_ipython = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    with progress.shown(True) as told:
        assert told == ()


def test_without_rich_a_terminal_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setitem(sys.modules, "rich", None)
    with progress.shown(True) as told:
        assert told == ()
