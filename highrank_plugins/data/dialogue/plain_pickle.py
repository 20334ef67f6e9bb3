"""Read pickles of plain values, as some corpora come, without running what they name."""

import pickle
import pickletools
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

# the instructions of a pickle that make text, numbers, lists, tuples and dicts
_PLAIN = frozenset(
    """
    PROTO FRAME MARK STOP POP POP_MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1
    LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE
    EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM
    SETITEMS PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET
    """.split()
)
_STORES = ("PUT", "BINPUT", "LONG_BINPUT")
# what the parsers raise for bytes that are no pickle
_DAMAGED = (pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def load_plain(path: Path) -> Any:
    """Return the value of a pickle of text, numbers, None, lists, tuples and dicts only.

    Text of Python 2 is read as UTF-8. The file is gone through before anything is made of it.

    Raises:
        ValueError: it is damaged, holds anything else, or asks for more memory than it fills.
    """
    try:
        with path.open("rb") as file:
            _check(file, path.stat().st_size)
            file.seek(0)
            return _PlainUnpickler(file, encoding="utf-8").load()
    except (*_DAMAGED, MemoryError) as error:
        raise ValueError(
            f"{path} is refused, it is no pickle of plain values ({error}): copy it again, and use "
            "only files from a source that you trust"
        ) from None


def _check(file: BinaryIO, size: int) -> None:
    for opcode, argument, position in pickletools.genops(file):
        if opcode.name not in _PLAIN:
            what = f" {argument}" if argument is not None else ""
            raise ValueError(f"{opcode.name}{what} at byte {position}")
        if opcode.name in _STORES and not 0 <= int(argument or 0) < size:
            raise ValueError(f"value number {argument} at byte {position} of {size}")
