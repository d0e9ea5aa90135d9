"""Run a script with stand-ins for packages that frameworks import and that nothing timed uses.

    python bench/peers/stand_ins.py SCRIPT …

So a framework runs where its wheel alone can be carried to. Packages that are there go first.
"""

import runpy
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import ClassVar
from unittest.mock import MagicMock

UNUSED = (
    *("scipy", "sklearn", "pandas", "matplotlib", "tqdm", "torchvision", "pynvml"),
    *("dp_accounting", "prv_accountant"),
)
"""For plots, datasets, accountants of privacy and the choice of a GPU."""


class _Module(ModuleType):
    """Has any name that is asked for."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


class StandIns(MetaPathFinder, Loader):
    """Finds some packages and all that is in them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self.names:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is to be run."""


if __name__ == "__main__":
    sys.meta_path.append(StandIns(UNUSED))
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
