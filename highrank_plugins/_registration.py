"""Makes every fairseq model, task, criterion and optimizer of this package known to fairseq."""

import importlib
import importlib.util
import pkgutil

# In this order: the workarounds of compat must be in place before anything else uses fairseq.
_PACKAGES = ("compat", "models", "tasks", "criterions", "optim")


def register() -> None:
    """Imports every module of compat, models, tasks, criterions and optim; may be called again.

    Raises:
        ModuleNotFoundError: fairseq is not installed.
    """
    for package in _PACKAGES:
        name = f"highrank_plugins.{package}"
        if importlib.util.find_spec(name) is not None:
            _import_tree(name)


def _import_tree(name: str) -> None:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        importlib.import_module(module.name)
