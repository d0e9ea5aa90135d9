"""Results as a person reads them: tables, figures, one page."""

from masquerade.report.main_table import markdown
from masquerade.report.page import page
from masquerade.report.tables import rows
from masquerade.report.terminal import terminal

__all__ = ["markdown", "page", "rows", "terminal"]
