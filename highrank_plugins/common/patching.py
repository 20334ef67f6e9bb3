"""Replace one function of fairseq by ours, import it without two libraries, keep what it frees."""

import ctypes
import functools
import importlib
import importlib.machinery
import inspect
import os
import sys
import types
from collections.abc import Callable
from types import ModuleType
from typing import Any

_DEFERRED = ("scipy.stats", "sklearn", "sklearn.metrics")
# of mallopt, and of the environment
_KEEP = {"TRIM_THRESHOLD": (-1, 2**31 - 1), "MMAP_THRESHOLD": (-3, 2**28)}


def replaces(owner: Any, name: str) -> Callable:
    """Decorate `new` so that `owner.name(*args)` becomes `new(stock, *args)`.

    `owner` is a module or a class; a module that is loaded again adds no second replacement.
    """

    def install(new: Callable) -> Callable:
        stock = getattr(owner, name)
        source = f"{new.__module__}.{new.__qualname__}"
        if getattr(stock, "highrank_patch", "") == source:
            return stock

        def around(*args: Any, **kwargs: Any) -> Any:
            return new(stock, *args, **kwargs)

        # torch.jit.script compiles the stock source, and looks names up in its module
        names = getattr(inspect.unwrap(stock), "__globals__", {})  # a function in C has none
        cells = around.__closure__
        patched = types.FunctionType(around.__code__, names, closure=cells)
        functools.update_wrapper(patched, stock)
        vars(patched)["highrank_patch"] = source
        is_static = isinstance(owner, type) and isinstance(owner.__dict__.get(name), staticmethod)
        setattr(owner, name, staticmethod(patched) if is_static else patched)
        # `python -m fairseq_cli.train` is a second module next to `owner`
        script, file = sys.modules["__main__"], getattr(owner, "__file__", None)
        if script is not owner and file and file == getattr(script, "__file__", None):
            setattr(script, name, patched)
        return patched

    return install


def import_fairseq() -> None:
    """Import fairseq without scikit-learn and scipy.stats, which take a third of the time.

    Its names load them when they are first used; all other importers get the modules themselves.
    """
    wanted = () if "fairseq" in sys.modules else _DEFERRED
    deferred = {name: _Module(name) for name in wanted if name not in sys.modules}
    sys.modules.update(deferred)
    try:
        importlib.import_module("fairseq")
    finally:
        for each in deferred:
            del sys.modules[each]


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


def by_name(stock: Callable, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call by their names, also those given by position."""
    return inspect.signature(stock).bind(*args, **kwargs).arguments


def keep_freed_memory() -> None:
    """Keep freed blocks for the next step, where the C library is GNU's.

    Otherwise the system fills them with zeros again: a tenth of a softmax's step at M = 32,000.
    Blocks above 256 MiB go back: holes of their size made the peak of plain code 1.6 times as high.
    """
    for name, (parameter, size) in _KEEP.items():
        is_set = f"MALLOC_{name}_" in os.environ or "GLIBC_TUNABLES" in os.environ
        if not is_set and hasattr(libc := ctypes.CDLL(None), "mallopt"):
            libc.mallopt(parameter, size)
