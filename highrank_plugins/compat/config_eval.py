"""fairseq passes strings of a checkpoint's configuration to Python's eval().

What breaks: nothing visibly; a model file whose `adaptive_softmax_cutoff`, `character_filters` or
`decoder_layers` is a Python expression runs it when it is loaded, although torch.load itself is
safe (`weights_only=True`). 56 bare calls of eval() in 31 modules do this.
Why: before dataclasses, fairseq wrote lists as strings, `"[(512, 3)] * 20"`.
What we do: every module of fairseq gets a global `eval` that understands literals and a little
arithmetic; modules imported later get theirs from an import hook.
Delete when: fairseq reads these options with ast.literal_eval.
"""

import ast
import operator
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import Any

from highrank_plugins.common.user_error import UserError

_PACKAGES = ("fairseq", "fairseq_cli")
_MAX_CHARACTERS = _MAX_ITEMS = 10_000
_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def literal(text: Any) -> Any:
    """Return the value of a literal, or of sums and products of literals, without running code.

    Understands numbers, strings, booleans, None, tuples, lists and dicts; + - * of numbers, + of
    two lists or tuples, and a list times a count. Other than strings are returned as they are.
    """
    if not isinstance(text, str):
        return text
    if len(text) > _MAX_CHARACTERS:
        raise UserError(f"{text[:60]!r}… is too long for an option: {len(text)} characters")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        raise UserError(
            f"{text!r} is not a plain literal: fairseq's configuration strings may hold numbers, "
            "strings, lists, tuples and dicts, with + - * between them, but no other code"
        ) from None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Tuple(elts=items):
            return tuple(map(_value, items))
        case ast.List(elts=items):
            return list(map(_value, items))
        case ast.Dict(keys=keys, values=values):
            return {_value(k): _value(v) for k, v in zip(keys, values, strict=True)}
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
            return _combine(ast.Mult(), -1 if isinstance(op, ast.USub) else 1, _value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _combine(op, _value(left), _value(right))
    raise ValueError


def _combine(op: ast.operator, left: Any, right: Any) -> Any:
    is_sequence = isinstance(left, list | tuple)
    if is_sequence and isinstance(op, ast.Mult):
        # without a limit, a few characters could ask for all memory
        known = isinstance(right, int) and len(left) * right <= _MAX_ITEMS
    elif is_sequence and isinstance(op, ast.Add):
        known = type(left) is type(right)
    else:
        known = isinstance(left, int | float) and isinstance(right, int | float)
    if not known:
        raise ValueError
    return _ARITHMETIC[type(op)](left, right)


class _Loader(SourceFileLoader):
    def exec_module(self, module: Any) -> None:
        module.eval = literal
        super().exec_module(module)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in _PACKAGES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


sys.meta_path.insert(0, _Finder)
for _name, _module in list(sys.modules.items()):
    if _name.partition(".")[0] in _PACKAGES:
        vars(_module)["eval"] = literal
