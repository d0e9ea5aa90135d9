"""What the site makes of pages while it reads them, so that the pages stay plain Markdown."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

BELOW = {
    "docs/choose": "docs/methods/*",
    "docs/results/index": "docs/results/*\n/runs/QUEUE",
    "docs/design": "docs/decisions/*",
}
"""Pages whose section in the contents has all pages of a folder."""


def from_notebook(text: str) -> str:
    """Return a notebook's cells as a page: texts as they are, code in blocks."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(parts) + "\n"


def from_program(text: str, name: str) -> str:
    """Return a program as a page: the first line of its docstring, and all of it in a block."""
    title = text.split('"""')[1].partition("\n")[0].rstrip(".")
    return f"# {title}\n\n`python {name}.py`\n\n```python\n{text}```\n"


FOLDERS = {"docs/methods": "/docs/choose.md#all-methods", "docs/decisions": "/docs/design.md"}
"""Folders that pages link to, and the page that lists what is in them."""


def without_folders(text: str, page: Path, root: Path) -> str:
    """Let links to folders, which a site does not show, lead to the page that lists them."""

    def shown(match: re.Match[str]) -> str:
        folder = (page.parent / match[2]).resolve()
        if not folder.is_dir():
            return match[0]
        target = FOLDERS.get(folder.relative_to(root).as_posix())
        return f"[{match[1]}]({target})" if target else match[1]

    return re.sub(r"\[([^\]]+)\]\(([\w./-]+)\)", shown, text)


def toctree(entries: str, caption: str = "") -> str:
    """Return a hidden tree of contents; `entries` may be a pattern."""
    options = [
        ":hidden:",
        *[f":caption: {caption}"] * bool(caption),
        *[":glob:"] * ("*" in entries),
    ]
    lines = "\n".join(options)
    return f"\n```{{toctree}}\n{lines}\n\n{entries}\n```\n"


def contents(text: str) -> str:
    """Return the trees of contents that the lists of links under `## Read on` are."""
    chapters = re.findall(r"^### (.+)\n((?:(?!#).*\n?)*)", text.partition("## Read on")[2], re.M)
    trees = []
    for caption, chapter in chapters:
        links = re.findall(r"^- \[([^\]]+)\]\(([\w./-]+)\)", chapter, re.MULTILINE)
        entries = [f"{title} </{path.rpartition('.')[0]}>" for title, path in links]
        trees.append(toctree("\n".join(entries), caption))
    return "".join(trees)


def reference(text: str) -> str:
    """Put what its docstring says in the place of every name that is an item of a list."""

    def described(match: re.Match[str]) -> str:
        name = match[1]
        kind = "autoclass" if name.rpartition(".")[2][0].isupper() else "autofunction"
        return f"```{{eval-rst}}\n.. {kind}:: masquerade.{name}\n```"

    return re.sub(r"^- `mq\.([\w.]+)`$", described, text, flags=re.MULTILINE)


def commands() -> str:
    """Return what `--help` says of every command."""
    import typer
    from typer.cli import get_docs_for_click

    from masquerade.cli.app import app

    whole = typer.main.get_command(app)
    context = typer.Context(whole, info_name="masquerade")
    text = get_docs_for_click(obj=whole, ctx=context, name="masquerade")
    # Its title and its table of commands stand on the page already.
    return text[text.index("\n## ") :]


MADE: dict[str, Callable[[str], str]] = {
    "README": contents,
    "docs/commands": lambda text: commands(),
    **{
        page: lambda text, entries=entries: toctree(f"/{entries}")
        for page, entries in BELOW.items()
    },
}
"""What is put behind a page."""


def read(app: Sphinx, name: str, source: list[str]) -> None:
    """Turn a source into the Markdown that is parsed."""
    path = Path(app.env.doc2path(name))
    ending = path.suffix
    if ending == ".ipynb":
        source[0] = from_notebook(source[0])
    elif ending == ".py":
        source[0] = from_program(source[0], name)
    elif name == "docs/api":
        source[0] = reference(source[0])
    elif name in MADE:
        source[0] += MADE[name](source[0])
    source[0] = without_folders(source[0], path, Path(app.srcdir))


def rows_of_codes(page: nodes.document) -> Iterator[tuple[str, nodes.row]]:
    """Yield the rows that explain an error or a warning, with their codes."""
    for row in page.findall(nodes.row):
        code = row[0].astext().strip()
        if re.fullmatch(r"[EW]\d{3}", code):
            yield code, row


def mark_codes(app: Sphinx, page: nodes.document) -> None:
    """Give every code on the page of errors an anchor (`#e201`) and an entry of the search."""
    if app.env.docname != "docs/errors":
        return
    for code, row in rows_of_codes(page):
        row["ids"].append(code.lower())
        row[0].insert(0, addnodes.index(entries=[("single", code, code.lower(), "main", None)]))


def ours(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out of the reference what other packages give our classes."""
    owner = getattr(thing, "__objclass__", thing)
    home = getattr(owner, "__module__", None) or "masquerade"
    return skip or None if home.startswith("masquerade") else True


def plain(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Keep signs outside of backticks from meaning something in the text of a docstring."""
    for number, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
        lines[number] = "`".join(parts)


def begin_at_the_readme(app: Sphinx, error: Exception | None) -> None:
    """Lead whoever opens the folder to its first page."""
    if error is None and app.builder.format == "html":
        first = '<!doctype html><meta http-equiv="refresh" content="0; url=README.html">\n'
        (Path(app.outdir) / "index.html").write_text(first, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect with Sphinx."""
    app.connect("source-read", read)
    app.connect("doctree-read", mark_codes)
    app.connect("autodoc-skip-member", ours)
    app.connect("autodoc-process-docstring", plain)
    app.connect("build-finished", begin_at_the_readme)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
