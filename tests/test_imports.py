"""Imports point one way, nothing dangerous is called, and public names are few and explained."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import masquerade

PACKAGE = Path(masquerade.__file__).parent
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(path.read_text("utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}
"""The syntax tree of every module, by its path: `core.tree`, `config`."""

ARROWS = {
    "errors": set(),
    "core": {"errors"},
    "results": {"errors"},
    "tables": {"errors"},
    "metrics": {"core"},
    "rules": {"core", "errors"},
    "wire": {"core", "errors"},
    "storage": {"core", "errors", "results"},
    "cost": {"core", "errors", "wire"},
    "methods": {"core", "errors"},
    "models": {"core", "errors", "storage"},
    "data": {"core", "errors", "storage", "tables"},
    "config": {"core", "cost", "data", "errors", "methods", "metrics", "models", "rules", "tables"},
    "engine": {"core", "cost", "data", "errors", "wire"},
    "simulation": {"config", "core", "cost", "data", "engine", "errors", "results", "wire"},
    "evaluation": {
        *("config", "core", "cost", "data", "engine", "errors", "results", "rules"),
        "simulation",
    },
    "laws": {
        *("config", "core", "data", "engine", "errors", "evaluation", "methods", "models"),
        *("results", "simulation", "wire"),
    },
    "report": {"cost", "errors", "results"},
    "export": {
        *("__version__", "config", "core", "data", "errors", "methods", "models", "results"),
        *("simulation", "storage", "tables"),
    },
    "experiments": {
        "__version__",
        *("config", "core", "cost", "data", "engine", "errors", "evaluation", "export", "methods"),
        *("models", "report", "results", "simulation", "storage", "tables", "wire"),
    },
    "deploy": {
        "__version__",
        *("config", "core", "cost", "data", "engine", "errors", "evaluation", "experiments"),
        *("export", "methods", "models", "results", "simulation", "storage", "wire"),
    },
    "reproduce": {
        *("__version__", "config", "errors", "experiments", "methods", "report", "results"),
        "storage",
    },
    "sweeps": {
        *("config", "errors", "experiments", "methods", "metrics", "report", "results", "storage"),
    },
    "trackers": {"errors", "experiments", "results"},
    "cli": {
        *("__version__", "config", "core", "cost", "data", "deploy", "engine", "errors"),
        *("experiments", "export", "laws", "methods", "models", "report", "reproduce"),
        *("results", "storage", "sweeps", "tables", "trackers"),
    },
    "__main__": {"cli"},
}
"""What each package may import beside itself; a package stands under all that import it."""


def imports(module: ast.AST) -> Iterator[str]:
    """Yield the full name of whatever a module imports, wherever in it that happens."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own(module: ast.AST) -> set[str]:
    """Return the folders and modules of the package that a module imports."""
    names = (name.split(".") for name in imports(module))
    return {parts[1] for parts in names if parts[0] == "masquerade" and len(parts) > 1}


def package(name: str) -> str:
    """Return the package of a module: that of `data.readers.csv` is `data`."""
    return name.split(".")[0]


def back_arrows(folder: str, module: ast.AST) -> set[str]:
    return own(module) - {folder} - ARROWS[folder]


def test_every_package_has_its_arrows_and_they_are_all_used() -> None:
    used: dict[str, set[str]] = {}
    for name, module in FILES.items():
        if name != "__init__":
            used.setdefault(package(name), set()).update(own(module) - {package(name)})
    assert used == ARROWS


@pytest.mark.parametrize("name", [name for name in FILES if name != "__init__"])
def test_arrows_point_one_way(name: str) -> None:
    assert back_arrows(package(name), FILES[name]) == set()


def test_a_back_arrow_would_be_seen() -> None:
    lines = {
        "from masquerade.engine.loop import Loop": {"engine"},
        "import masquerade.config": {"config"},
        "def f():\n    from masquerade import simulation": {"simulation"},
        "from masquerade.core import tree": set(),
        "from masquerade.methods.fedavg import FedAvg": set(),
    }
    for text, expected in lines.items():
        assert back_arrows("methods", ast.parse(text)) == expected


def test_packages_stand_in_one_order() -> None:
    inside = {name: arrows & ARROWS.keys() for name, arrows in ARROWS.items()}
    order = list(TopologicalSorter(inside).static_order())
    assert set(order) == ARROWS.keys()


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".__init__")])
def test_every_package_says_what_it_is_in_a_sentence(name: str) -> None:
    text = ast.get_docstring(FILES[name])
    assert text
    assert text.splitlines()[0].endswith(".")


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("core.")])
def test_the_core_needs_torch_alone(name: str) -> None:
    roots = {line.split(".")[0] for line in imports(FILES[name])}
    assert roots - sys.stdlib_module_names <= {"torch", "masquerade"}
    # It touches no file and no network.
    assert not roots & {
        "io",
        "os",
        "pathlib",
        "shutil",
        "socket",
        "subprocess",
        "tempfile",
        "urllib",
    }


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("tables.")])
def test_tables_are_read_without_torch(name: str) -> None:
    known = {line.split(".")[0] for line in imports(FILES[name])} - sys.stdlib_module_names
    assert known <= {"masquerade", "numpy", "narwhals"}


@pytest.mark.parametrize("name", ["storage.atomic", "storage.manifest"])
def test_files_are_written_and_sealed_without_torch(name: str) -> None:
    known = {line.split(".")[0] for line in imports(FILES[name])} - sys.stdlib_module_names
    assert known <= {"masquerade"}
    assert own(FILES[name]) <= {"errors", "results"}


def test_the_disk_is_waited_for_in_one_place() -> None:
    found = [
        name
        for name, module in FILES.items()
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and node.attr in ("fsync", "fdatasync")
    ]
    assert set(found) == {"storage.atomic"}


FORBIDDEN_IMPORTS = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_WORDS = {"shell", "allow_pickle"}


def dangers(module: ast.AST) -> Iterator[str]:
    """Yield what a module does that could run what it was only meant to read, or hide a NaN."""
    yield from {line.split(".")[0] for line in imports(module)} & FORBIDDEN_IMPORTS
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute):
            if node.attr == "nan_to_num":
                yield node.attr
            if ast.unparse(node) in ("torch.load", "os.system", "os.popen"):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
                yield node.func.id
            yield from (
                f"{word.arg}={ast.unparse(word.value)}"
                for word in node.keywords
                if word.arg in FORBIDDEN_WORDS and ast.unparse(word.value) != "False"
            )
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from names & {"torch.load", "torch.nan_to_num", "os.system", "os.popen"}


@pytest.mark.parametrize("name", FILES)
def test_nothing_dangerous_is_called(name: str) -> None:
    assert list(dangers(FILES[name])) == []


def test_pickles_are_walked_through_in_one_place() -> None:
    found = [name for name, module in FILES.items() if "pickletools" in imports(module)]
    assert found == ["storage.safe_pickle"]


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "from torch import load",
        "eval('1')",
        "exec(text)",
        "x = torch.nan_to_num(x)",
        "x.nan_to_num()",
        "subprocess.run(line, shell=True)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=maybe)",
    ],
)
def test_a_danger_would_be_seen(text: str) -> None:
    assert len(list(dangers(ast.parse(text)))) == 1


@pytest.mark.parametrize(
    "text", ["np.load(path, allow_pickle=False)", "model.eval()", "load(path)"]
)
def test_the_harmless_is_not_called_dangerous(text: str) -> None:
    assert list(dangers(ast.parse(text))) == []


def python(text: str) -> str:
    """Run a program in a process of its own and return what it printed."""
    path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_does_not_import_torch() -> None:
    text = "import sys, masquerade; print(masquerade.__version__, 'torch' in sys.modules)"
    assert python(text).split() == [masquerade.__version__, "False"]


BLOCKED = ("rich", "typer", "vl_convert", "sklearn", "scipy", "pandas", "PIL", "tomli_w", "pooch")
BLOCKED += ("requests", "platformdirs", "pyarrow", "constriction", "narwhals")
"""A module that is None in `sys.modules` cannot be imported."""
TRAINING = f"""
import sys
sys.modules.update(dict.fromkeys({BLOCKED}))
import torch
import masquerade as mq
import masquerade.experiments.run
x = torch.arange(80.0).reshape(40, 2) / 80
data = mq.partition(mq.from_arrays(x, (x[:, 0] > 0.5).long()), 2, mq.IID())
for engine in ("loop", "batched"):
    compute = mq.Compute(engine=engine)
    method = mq.methods.DMPFL(local_epochs=2)
    result = mq.run(method, torch.nn.Linear(2, 2), data, 4, batch_size=2, compute=compute)
    print(len(result.summaries), "torch._dynamo" in sys.modules)
"""


def test_training_needs_torch_numpy_and_safetensors_and_no_compiler() -> None:
    """Of small batches there are so many that steps are recorded."""
    assert python(TRAINING).split() == ["3", "False", "3", "False"]


def test_public_names_are_few_sorted_out_and_there() -> None:
    names = masquerade.__all__
    assert len(names) == len(set(names)) <= 55
    assert dir(masquerade) == sorted(names)
    assert all(hasattr(masquerade, name) for name in names)
    with pytest.raises(AttributeError, match="no name `Fedavg`"):
        masquerade.__getattr__("Fedavg")


def test_type_checkers_see_the_same_names() -> None:
    found = {
        line.rsplit(".", 1)[1]
        for line in imports(FILES["__init__"])
        if line.startswith("masquerade.")
    }
    assert found == set(masquerade.__all__)


@pytest.mark.parametrize("name", masquerade.__all__)
def test_every_public_name_is_explained(name: str) -> None:
    text = getattr(masquerade, name).__doc__
    assert text
    # A dataclass without a docstring gets its signature for one.
    assert not text.startswith(f"{name}(")
