"""What the pages of the documentation name, and whether it is there.

`problems(page)` reads a page of Markdown: links with their anchors, error codes, everything in
backticks that has the form of a path, a symbol, a setting or a command, and the length of lines.
Capitals in a path or a command (`runs/PAPER/TABLE`) stand for anything.
"""

import dataclasses
import importlib
import inspect
import re
import shlex
import subprocess
import warnings
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import masquerade
from masquerade.config.settings import SECTIONS, Config
from masquerade.methods import METHODS

with warnings.catch_warnings():
    # Typer reads names that the newest Click means to drop.
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer

    from masquerade.cli import app as cli

ROOT = Path(__file__).parents[2]
WIDTH = 100
"""Columns of a line of prose."""
FOREIGN = {"torch": "torch", "nn": "torch.nn", "F": "torch.nn.functional", "np": "numpy"}
"""What other packages' modules are called in the documentation."""
ENDINGS = (".csv", ".html", ".json", ".jsonl", ".lock", ".md", ".npy", ".npz", ".parquet", ".py")
ENDINGS += (".safetensors", ".svg", ".toml", ".txt")

WORD = re.compile(r"[A-Za-z_]\w*")
DOTTED = re.compile(r"[A-Za-z_]\w*(\.\w+)+")
PATH = re.compile(r"[\w.*-]+(/[\w.*-]*)*")
CODE = re.compile(r"\b[EW]\d{3}\b")
ANYTHING = re.compile(r"[A-Z]{2,}|\bX\b|(?<=seed)N\b")


class Span(NamedTuple):
    """A piece of a page, and the line that it begins in."""

    line: int
    text: str


# What the repository holds.


@cache
def files() -> tuple[str, ...]:
    """List the paths of all files and folders that git knows or will know."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [Path(name) for name in listed.split("\0") if name and (ROOT / name).exists()]
    folders = {parent for path in paths for parent in path.parents}
    return tuple(sorted({path.as_posix() for path in {*paths, *folders}}))


@cache
def sources() -> str:
    """Return the text of all programs and settings."""
    kinds = ("src/**/*.py", "bench/**/*.py", "examples/*.py", "attacks/*.py", "tests/**/*.py")
    # This test would find its own examples of what is not there.
    paths = [p for kind in kinds for p in ROOT.glob(kind) if "references" not in p.name]
    paths += [ROOT / "pyproject.toml", ROOT / "Makefile", *ROOT.glob("runs/**/*.toml")]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


@cache
def words() -> frozenset[str]:
    """Return every word that the programs and settings use."""
    return frozenset(WORD.findall(sources()))


@cache
def modules() -> dict[str, list[str]]:
    """Return the full names of the package's modules, by their last part."""
    package = ROOT / "src/masquerade"
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names = parts[:-1] if parts[-1] == "__init__" else parts
        found.setdefault(names[-1], []).append(".".join(names))
    return found


@cache
def classes() -> dict[str, list[str]]:
    """Return the modules that define a class, by its name."""
    found: dict[str, list[str]] = {}
    for names in modules().values():
        for name in names:
            path = ROOT / "src" / name.replace(".", "/")
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            for each in re.findall(r"^class (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE):
                found.setdefault(each, []).append(name)
    return found


@cache
def codes() -> frozenset[str]:
    """Return the codes that the page of errors lists."""
    return frozenset(re.findall(r"^\| ([EW]\d{3}) ", read(ROOT / "docs/errors.md"), re.MULTILINE))


@cache
def settings() -> frozenset[str]:
    """Return the full names of all settings: `data.seed`, `method.lr`, `method.fedprox.mu`."""
    whole = Config()
    names = SECTIONS
    found = {
        f"{name}.{field.name}"
        for name in names
        for field in dataclasses.fields(getattr(whole, name))
    }
    for name, entry in METHODS.items():
        own = [field.name for field in dataclasses.fields(entry.method)]
        found |= {f"method.{name}", *(f"method.{key}" for key in own)}
        found |= {f"method.{name}.{key}" for key in own}
    return frozenset(found)


# What a name leads to.


def is_path(token: str) -> bool:
    """Say whether a path is the end of some path here, or a name that programs give a file."""
    wanted = ANYTHING.sub("*", token.rstrip("/").removeprefix("./"))
    if any(fnmatchcase(f"/{path}", f"*/{wanted}") for path in files()):
        return True
    name = token.rstrip("/")
    if "/" in name:
        return False
    # Names that programs put together, such as f"{array}.npy".
    stem, _, ending = name.rpartition(".")
    made = ending in ("npy", "json", "safetensors") and f"}}.{ending}" in sources()
    return name in sources() or (made and stem in words())


def attribute(thing: Any, name: str) -> Any:
    """Return an attribute of a module or a class, also one that only its instances have."""
    if hasattr(thing, name):
        return getattr(thing, name)
    if isinstance(thing, type) and any(
        name in inspect.get_annotations(base)
        or re.search(rf"\bself\.{name}\b", inspect.getsource(base))
        for base in thing.__mro__
        if base.__module__.startswith("masquerade")
    ):
        return None
    raise LookupError(name)


def follow(thing: Any, names: list[str]) -> bool:
    """Say whether attributes lead on from a thing, as far as types tell."""
    for name in names:
        if thing is None:
            return all(each in words() for each in names)
        try:
            thing = attribute(thing, name)
        except LookupError:
            return False
    return True


def is_symbol(token: str) -> bool:
    """Say whether a dotted name leads to a symbol, a module, a setting or an entry of ours."""
    first, *rest = token.split(".")
    rest = [part for part in rest if not ANYTHING.fullmatch(part)]
    if first in FOREIGN:
        return follow(importlib.import_module(FOREIGN[first]), rest)
    if first in ("mq", "masquerade"):
        return follow(masquerade, rest) or find_spec_of(f"masquerade.{'.'.join(rest)}")
    if is_setting(token):
        return True
    found = [importlib.import_module(name) for name in modules().get(first, ())]
    owner = first if first in classes() else first.capitalize()
    found += [getattr(importlib.import_module(name), owner) for name in classes().get(owner, ())]
    if found:
        return any(follow(each, rest) for each in found)
    return all(part in words() for part in (first, *rest))


def find_spec_of(name: str) -> bool:
    """Say whether a module is there."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def is_setting(token: str) -> bool:
    """Say whether `section.key` is a setting; capitals stand for any."""
    section, dot, key = token.partition(".")
    wanted = section + dot + ANYTHING.sub("*", key)
    return any(fnmatchcase(name, wanted) for name in settings())


# What stands in a page.


def read(path: Path) -> str:
    """Read a text."""
    return path.read_text(encoding="utf-8")


def blank(match: re.Match[str]) -> str:
    """Return as many lines with nothing in them."""
    return "\n" * match[0].count("\n")


FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?<=\n\n)(?:(?: {4}.*)?\n)*(?: {4}.*)(?=\n|$)")


def prose(text: str) -> str:
    """Return a page without its blocks of code; lines keep their numbers."""
    return INDENTED.sub(blank, FENCED.sub(blank, text))


def spans(text: str, pattern: str) -> Iterator[Span]:
    """Yield what a pattern's group matches, lines within it joined."""
    for match in re.finditer(pattern, text):
        yield Span(text.count("\n", 0, match.start()) + 1, " ".join(match[1].split()))


def commands(text: str) -> Iterator[Span]:
    """Yield the lines of blocks of code, those that a backslash continues joined."""
    for block in [*FENCED.finditer(text), *INDENTED.finditer(text)]:
        first = text.count("\n", 0, block.start()) + 1
        lines = block[0].splitlines()
        for place, line in enumerate(lines):
            more = [line]
            while more[-1].endswith("\\"):
                more.append(lines[place + len(more)])
            joined = " ".join(each.rstrip("\\").strip() for each in more)
            yield Span(first + place, re.sub(r"\s#.*", "", joined))


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", prose(read(path)), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
    return set(plain)


# What may be wrong with it.


def in_link(page: Path, target: str) -> str:
    """Say what is wrong with a link."""
    if re.match(r"\w+:", target):
        return ""
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return "no such file"
    if anchor and file.suffix == ".md" and anchor not in anchors(file):
        return f"{file.name} has no heading with this anchor"
    return ""


def in_command(text: str) -> str:
    """Say what is wrong with a line of a shell."""
    try:
        line = shlex.split(text)
    except ValueError:
        return ""
    while line and re.match(r"[A-Z_]+=", line[0]):
        line = line[1:]
    program, *rest = line or [""]
    checks: dict[str, Callable[[list[str]], str]] = {
        "masquerade": in_masquerade,
        "python": in_python,
        "pytest": in_pytest,
        "make": in_make,
    }
    return checks[program](rest) if program in checks else ""


def in_masquerade(given: list[str]) -> str:
    """Say which command, option, setting or method of a line is not there."""
    at: Any = typer.main.get_command(cli.app)
    while getattr(at, "commands", None) and given and not given[0].startswith("-"):
        if given[0] not in at.commands:
            return f"`{at.name or 'masquerade'}` has no command `{given[0]}`"
        at, given = at.commands[given[0]], given[1:]
    # A class of one's own has settings that nobody here knows.
    own = any(".py:" in each for each in given)
    known = {name for each in at.params for name in (*each.opts, *each.secondary_opts)}
    for place, one in enumerate(given):
        option, _, value = one.partition("=")
        if re.match(r"--?[a-z]", option) and option not in known | {"--help"}:
            return f"no option `{option}`"
        value = value or " ".join(given[place + 1 : place + 2])
        setting = value.partition("=")[0]
        theirs = own and setting.startswith("method.")
        if option == "--set" and value and not theirs and not is_setting(setting):
            return f"no setting `{value.partition('=')[0]}`"
        if option in ("--method", "--methods") and value and ":" not in value:
            unknown = [name for name in value.split(",") if name not in METHODS]
            if unknown and not ANYTHING.fullmatch(value):
                return f"no method `{unknown[0]}`"
    return ""


def in_python(given: list[str]) -> str:
    """Say which program or option of a line is not there."""
    if given[:1] == ["-m"]:
        name, rest = given[1], given[2:]
        return "" if find_spec_of(name) else f"no module `{name}`"
    if not given or given[0].startswith("-"):
        return ""
    path, rest = ROOT / given[0], given[1:]
    if not path.exists():
        return f"no file `{given[0]}`"
    if path.is_dir():
        path = path / "__main__.py"
    missing = [each for each in rest if each.startswith("--") and each not in read(path)]
    return f"{given[0]} has no option `{missing[0]}`" if missing else ""


def in_pytest(given: list[str]) -> str:
    """Say which path of a line is not there."""
    skipped = [place + 1 for place, each in enumerate(given) if each in ("-m", "-k", "-n")]
    paths = [
        each.partition("::")[0]
        for place, each in enumerate(given)
        if not each.startswith("-") and place not in skipped
    ]
    missing = [path for path in paths if not (ROOT / path).exists()]
    return f"no file `{missing[0]}`" if missing else ""


def in_make(given: list[str]) -> str:
    """Say which target of a line is not there."""
    known = re.findall(r"^(\w+):", read(ROOT / "Makefile"), re.MULTILINE)
    missing = [each for each in given if "=" not in each and each not in known]
    return f"no target `{missing[0]}`" if missing else ""


def in_call(name: str, given: str) -> str:
    """Say which keyword of `mq.function(keyword=…)` is not there."""
    thing: Any = masquerade
    for part in name.split(".")[1:]:
        thing = attribute(thing, part)
    parameters = inspect.signature(thing).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return ""
    outer = re.sub(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]", "", given)
    missing = [key for key in re.findall(r"\b(\w+)=", outer) if key not in parameters]
    return f"`{name}` has no argument `{missing[0]}`" if missing else ""


def in_token(token: str, own: str) -> str:
    """Say what is wrong with something in backticks; what has no known form is left alone.

    What the page's own examples in code are about, `own`, is known.
    """
    if " " in token and re.match(r"(masquerade|python|pytest|make|[A-Z_]+=\S+) ", token):
        return in_command(token)
    call = re.match(r"(mq(?:\.\w+)+)\((.*)\)$", token)
    if call:
        return in_call(call[1], call[2]) if is_symbol(call[1]) else "no such symbol"
    # `engine/select.py: make` is a symbol of a file.
    file, _, symbol = token.partition(": ")
    if symbol and file.endswith(".py") and PATH.fullmatch(file):
        if not is_path(file):
            return "no such file"
        name = Path(file).stem
        return "" if is_symbol(f"{name}.{symbol}") else f"{file} has no `{symbol}`"
    # A value or an argument may follow.
    token = re.split(r"\s*[=({\[]", token, maxsplit=1)[0]
    if CODE.fullmatch(token):
        return "" if token in codes() else "docs/errors.md has no such code"
    if token.endswith(ENDINGS) or ("/" in token and looks_like_ours(token)):
        if not PATH.fullmatch(token):
            return ""
        return "" if is_path(token) or token in own else "no such file or folder"
    if DOTTED.fullmatch(token):
        return "" if is_symbol(token) else "no such symbol, module or setting"
    if WORD.fullmatch(token) and not ANYTHING.fullmatch(token):
        known = token in words() or token in files_by_stem() or token in WORD.findall(own)
        return "" if known else "no program has this word"
    return ""


@cache
def files_by_stem() -> frozenset[str]:
    """Return the names of files and folders without their endings."""
    return frozenset(Path(path).stem for path in files())


def looks_like_ours(token: str) -> bool:
    """Say whether a token with a slash begins with a folder of the repository or the package."""
    if not PATH.fullmatch(token):
        return False
    first = token.split("/")[0]
    return any(
        (folder / first).is_dir() for folder in (ROOT, ROOT / "docs", ROOT / "src/masquerade")
    )


def too_long(line: str) -> bool:
    """Say whether a line is too long; tables, images and targets of links may be."""
    if line.startswith(("|", "![", "<!--")):
        return False
    shown = re.sub(r"\]\([^)]*\)", "]", line)
    return len(shown) > WIDTH and not re.match(r"\S*$", shown.strip())


def problems(page: Path) -> list[str]:
    """Return a line for everything that a page names and that is not there."""
    text = read(page)
    plain, own = prose(text), "\n".join(span.text for span in commands(text))
    bare = re.sub(r"`[^`]*`", blank, plain)
    found = [
        *((span, in_link(page, span.text)) for span in spans(bare, r"\]\(<?([^)\s>]+)")),
        *(
            (span, in_link(page, span.text))
            for span in spans(bare, r"""(?:src|href)=["']([^"']+)""")
        ),
        *((span, in_token(span.text, own)) for span in spans(plain, r"`([^`]+)`")),
        *((span, in_command(span.text)) for span in commands(text)),
        *(
            (span, "" if span.text in codes() else "docs/errors.md has no such code")
            for span in spans(bare, r"(\b[EW]\d{3}\b)")
        ),
        *(
            (Span(number, line[:40] + "…"), f"{len(line)} columns, {WIDTH} at most")
            for number, line in enumerate(plain.splitlines(), start=1)
            if too_long(line)
        ),
    ]
    name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page.name
    return [
        f"{name}:{span.line}: {span.text}: {wrong}"
        for span, wrong in sorted(found, key=lambda each: each[0].line)
        if wrong
    ]
