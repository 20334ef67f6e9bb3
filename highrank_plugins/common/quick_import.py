"""Import fairseq without two libraries that few of its users need.

Its criterion and its task for classification import scikit-learn and scipy.stats, which take a
third of the time of its import. Here the names load their modules when they are first used.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_DEFERRED = ("scipy.stats", "sklearn", "sklearn.metrics")


def defer_statistics() -> None:
    """Let the first import of fairseq leave out scikit-learn and scipy.stats.

    All other importers get the modules themselves. Nothing changes if fairseq is imported already.
    """
    if "fairseq" not in sys.modules and not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Find fairseq once, and replace the two libraries while it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "fairseq":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_quickly(module: ModuleType) -> None:
            deferred = {n: _Module(n) for n in _DEFERRED if n not in sys.modules}
            sys.modules.update(deferred)
            try:
                execute(module)
            finally:
                for each in deferred:
                    del sys.modules[each]

        spec.loader.exec_module = execute_quickly  # type: ignore[method-assign]  # changes this loader alone
        return spec


class _Module(ModuleType):
    """Take the place of a module: each of its functions imports it when it is called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        # without one, importlib.util.find_spec, which looks whether a library is there, fails
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if module := sys.modules.get(f"{self.__name__}.{name}"):
            return module

        def function(*args: Any, **kwargs: Any) -> Any:
            return getattr(importlib.import_module(self.__name__), name)(*args, **kwargs)

        return function
