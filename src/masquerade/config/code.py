"""Methods and networks from a Python file that a user names in a command: `path.py:NAME`.

Code is imported from no other place: neither a configuration nor a run directory has a path. Both
have what the code is called and the SHA-256 of its file, so that a run is resumed with the same.
"""

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from masquerade.core.method import Method
from masquerade.errors import MasqueradeError, nearest
from masquerade.methods import METHODS, MethodEntry

Network = Callable[[tuple[int, ...], int], nn.Module]
"""From the shape of one sample and the number of classes to a network with its initial weights."""


@dataclass(frozen=True)
class Code:
    """What was imported from a file."""

    sha256: str
    """Of the file."""
    found: Any


LOADED: dict[str, Code] = {}
"""What this process imported because it was named in its command, by FILE.py:NAME."""


def is_code(text: str) -> bool:
    """Tell whether a text names code in a file, and not a method or network of the package."""
    return ".py:" in text or text.endswith(".py")


def load_method(typed: str) -> str:
    """Import a method from `path.py:Class`; return what it is called from now on.

    The class need not be named where a file has one method alone.
    """
    name, code = load(typed if ".py:" in typed else f"{typed}:{_only_method(typed)}")
    found = code.found
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise MasqueradeError("E202", f"`{typed}` is {found!r}; name a subclass of `mq.Method`")
    METHODS.add(name, MethodEntry.plain(found))
    return name


def _only_method(typed: str) -> str:
    """Name the one method that a file defines."""
    module = _imported(_file(typed, typed), Path(typed).read_bytes())
    found = [
        name
        for name, each in vars(module).items()
        if isinstance(each, type)
        and issubclass(each, Method)
        and each.__module__ == module.__name__
    ]
    if len(found) != 1:
        there = f"name one: {', '.join(f'{typed}:{name}' for name in found)}"
        none = "it has none, which would be a subclass of `mq.Method`"
        raise MasqueradeError("E202", f"`{typed}` names no method; {there if found else none}")
    return found[0]


def load_network(typed: str) -> str:
    """Import a network from `path.py:function`; return what it is called from now on.

    The function is called with the shape of one sample and the number of classes.
    """
    name, code = load(typed)
    if not callable(code.found):
        text = f"`{typed}` is {code.found!r}; name a function (shape, classes) -> torch.nn.Module"
        raise MasqueradeError("E202", text)
    return name


def network(name: str) -> Network:
    """Return the function of a network that was imported."""
    made: Network = LOADED[name].found
    return made


def load(typed: str) -> tuple[str, Code]:
    path, _, attribute = typed.rpartition(":")
    file = _file(path if attribute.isidentifier() else "", typed)
    source = file.read_bytes()
    module = _imported(file, source)
    if not hasattr(module, attribute):
        text = f"{file} has no `{attribute}`{nearest(attribute, dir(module))}"
        raise MasqueradeError("E202", text)
    name = f"{file.name}:{attribute}"
    LOADED[name] = Code(hashlib.sha256(source).hexdigest(), getattr(module, attribute))
    return name, LOADED[name]


def _file(path: str, typed: str) -> Path:
    """Return the file that a path names."""
    if not Path(path).is_file():
        text = f"`{typed}` names no code; write path/to/file.py:NAME, and check the path"
        raise MasqueradeError("E201", text)
    return Path(path)


class _Source(SourceLoader):
    """Runs the very bytes that were hashed, and neither reads nor writes compiled files."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source

    def get_filename(self, fullname: str) -> str:
        """Return where the source lies."""
        return self.path

    def get_data(self, path: str) -> bytes:
        """Return the source."""
        return self.source


def _imported(file: Path, source: bytes) -> ModuleType:
    """Import a file, once; what it imports beside itself is found beside it.

    The hash of a run is that of this file alone.
    """
    place = str(file.resolve())
    digest = hashlib.sha256(place.encode() + source).hexdigest()[:12]
    name = f"masquerade_code_{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    loader = _Source(place, source)
    spec = importlib.util.spec_from_file_location(name, place, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses, and processes that are forked, look their module up.
    sys.modules[name] = module
    folder = str(Path(place).parent)
    sys.path.insert(0, folder)
    try:
        loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        text = f"{file} cannot be imported ({type(error).__name__}: {error}); mend it"
        raise MasqueradeError("E202", text) from error
    finally:
        sys.path.remove(folder)
    return module


PROGRAM = "program.txt"
"""The file of a run directory that names the Python program which made it, where it has a file."""


def program() -> str:
    """Name the file of the program that runs; empty in a notebook, where there is none."""
    return Path(getattr(sys.modules["__main__"], "__file__", None) or "").name


def refuse_program(path: Path, tables: Mapping[str, Any], then: str) -> None:
    """Refuse the directory of a Python program by the tables of its `config.toml`; say what to do.

    A run of a comparison lies in the directory of its program.
    """
    if "python" not in tables:
        return
    files = (path / PROGRAM, path.parent / PROGRAM)
    names = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    again = f"python {names[0]!r}" if names else "mq.run or mq.compare, as before"
    text = f"`{path}` was made by a Python program, which alone has its method and network; call"
    raise MasqueradeError(
        "E202", f"{text} it again ({again}): nothing is trained twice, and {then}"
    )


def hashes(names: tuple[str, ...]) -> dict[str, str]:
    """Return the SHA-256 of those names that are code."""
    return {name: LOADED[name].sha256 for name in names if name in LOADED}


def problems(wanted: dict[str, str]) -> list[str]:
    """Say which code of a run was not named in this command, or is another than it began with."""
    found = []
    for name, sha256 in wanted.items():
        if name not in LOADED:
            text = f"`{name}` is code from a file of yours, which is imported only where a command"
            found.append(f"{text} names it: add --method or --model PATH/{name}")
        elif LOADED[name].sha256 != sha256:
            found.append(f"{name} has changed since this run began; restore the file")
    return found
