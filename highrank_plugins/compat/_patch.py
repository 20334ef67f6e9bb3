"""Replacing one function of fairseq by ours."""

import functools
from collections.abc import Callable
from typing import Any


def replaces(owner: Any, name: str) -> Callable:
    """Decorator: `owner.name(*args)` becomes `new(stock, *args)`, where `stock` is the old one.

    `owner` is a module or a class. The stock function stays reachable as `__wrapped__`. A function
    that was replaced before is left alone, so that reloading a module does not stack patches.
    """

    def install(new: Callable) -> Callable:
        stock = getattr(owner, name)
        if getattr(stock, "highrank_patch", False):
            return stock

        @functools.wraps(stock)
        def patched(*args, **kwargs):
            return new(stock, *args, **kwargs)

        patched.highrank_patch = True
        is_static = isinstance(owner, type) and isinstance(owner.__dict__.get(name), staticmethod)
        setattr(owner, name, staticmethod(patched) if is_static else patched)
        return patched

    return install
