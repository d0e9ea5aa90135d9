"""Tests are of the CPU, also where there is a GPU, unless they are marked with `cuda`."""

import pytest
import torch
from hypothesis import settings

from masquerade.report import plots

# The same examples every time: what passed once on this text passes again.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    for item in items:
        if item.get_closest_marker("cuda") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs CUDA"))


@pytest.fixture
def plain_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write pages without figures, which take most of their time, where none is looked at."""
    monkeypatch.setattr(plots, "figures", lambda *given: {})


FIGURES = plots.figures


@pytest.fixture
def drawn_pages(plain_pages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write pages with their figures all the same."""
    monkeypatch.setattr(plots, "figures", FIGURES)


@pytest.fixture(autouse=True)
def _no_card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.get_closest_marker("cuda"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
