"""Replace one function of fairseq or Python by ours."""

import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any


def replaces(owner: Any, name: str) -> Callable:
    """Decorate `new` so that `owner.name(*args)` becomes `new(stock, *args)`.

    `owner` is a module or a class. The stock function, `stock`, stays reachable as `__wrapped__`.
    A module that is loaded again finds its own replacement in place, and adds none. A script that
    runs, such as `python -m fairseq_cli.train`, is a second module next to `owner`; it gets the
    replacement too.
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
        script, file = sys.modules["__main__"], getattr(owner, "__file__", None)
        if script is not owner and file and file == getattr(script, "__file__", None):
            setattr(script, name, patched)
        return patched

    return install
