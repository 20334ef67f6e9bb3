"""Provide high-rank output layers for torch and fairseq.

An import alone loads neither torch nor fairseq, so any model can use `highrank_plugins.heads`.
fairseq imports this package as its `--user-dir`, and everything registers itself. If the package
was imported first, it does so when one of fairseq's commands is imported later. A program that
calls fairseq's functions, without its commands, calls `register()`.
"""

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["__version__", "build_head", "register"]
__version__ = "0.1.0"

# In this order: the workarounds of compat must be in place before anything else uses fairseq.
_PACKAGES = ("compat", "hooks", "models", "tasks", "criterions", "optim")


def __getattr__(name: str) -> Any:
    """Import `build_head` where it is asked for, since it loads torch."""
    if name != "build_head":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.heads").build_head


def register() -> None:
    """Import every module of compat, models, tasks, criterions and optim; may be called again."""
    importlib.import_module("highrank_plugins.common.patching").import_fairseq()
    for package in _PACKAGES:
        name = f"highrank_plugins.{package}"
        if importlib.util.find_spec(name) is not None:
            found = importlib.import_module(name)
            for module in pkgutil.walk_packages(found.__path__, f"{name}."):
                importlib.import_module(module.name)


class _FirstCommand:
    """Register everything once a command of fairseq is imported, which is complete only then.

    Whoever imports our modules for fairseq one by one registers these alone.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        package, _, module = name.partition(".")
        is_ours = package == __name__ and module.partition(".")[0] in _PACKAGES
        if not is_ours and not (package == "fairseq_cli" and module):
            return None
        sys.meta_path.remove(self)
        if is_ours:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: Any) -> None:
                execute(module)
                register()

            vars(spec.loader)["exec_module"] = execute_and_register
        return spec


if "fairseq" in sys.modules:
    register()
else:
    sys.meta_path.insert(0, _FirstCommand())
