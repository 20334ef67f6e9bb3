"""Provide high-rank output layers for torch and fairseq.

An import alone loads neither torch nor fairseq, so any model can use `highrank_plugins.heads`.
fairseq imports this package as its `--user-dir`. fairseq is loaded by then, and everything
registers itself. If you import this package first and run fairseq later in the same process, call
`register()`.
"""

import importlib
import importlib.util
import pkgutil
import sys

__all__ = ["__version__", "register"]
__version__ = "0.1.0"

# In this order: the workarounds of compat must be in place before anything else uses fairseq.
_PACKAGES = ("compat", "hooks", "models", "tasks", "criterions", "optim")


def register() -> None:
    """Import every module of compat, models, tasks, criterions and optim; may be called again."""
    for package in _PACKAGES:
        name = f"highrank_plugins.{package}"
        if importlib.util.find_spec(name) is not None:
            _import_tree(name)


def _import_tree(name: str) -> None:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        importlib.import_module(module.name)


if "fairseq" in sys.modules:
    register()
