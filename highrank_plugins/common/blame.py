"""Find the options of a command line that have led to an error of fairseq's, by its traceback."""

import ast
import linecache
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

_SHORT = {"-a": "--arch", "-s": "--source-lang", "-t": "--target-lang"}
# names of parts of fairseq's configuration, which its code mentions for other reasons, too
_GROUPS = {"arch", "bpe", "criterion", "lr_scheduler", "optimizer", "scoring", "task", "tokenizer"}
_MOST_CHARACTERS = 300


def options_of(words: Sequence[str]) -> dict[str, str]:
    """Return the options of a command line: name in code → option and value, as given."""
    given = {}
    for word, following in zip(words, [*words[1:], "-"], strict=True):
        name, sign, value = word.partition("=")
        name = _SHORT.get(name, name)
        if name.startswith("--"):
            value = value if sign or following.startswith("-") else following
            given[name[2:].replace("-", "_")] = f"{name} {value}".strip()
    return given


def blamed(error: BaseException, given: Mapping[str, str]) -> list[str]:
    """Return the options that an error comes from: the innermost that its traceback mentions.

    A frame mentions the options whose names are in the statement that it runs, in the conditions
    around it, or in a variable of these. Of several, those count whose value is in the message.
    Without a mention, those count as well.
    """
    message = _plain(str(error))
    values = {name: _plain(option.partition(" ")[2]) for name, option in given.items()}
    said = {name for name, value in values.items() if len(value) > 2 and value in message}
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        names, variables = _words(frame.f_code.co_filename, line)
        found_locals = {name: frame.f_locals.get(name) for name in variables}
        local = {n: str(v) for n, v in found_locals.items() if isinstance(v, str | int | float)}
        # `embed_dim` may stand for `encoder_embed_dim`
        same = {
            name
            for name in given
            for part in local
            if f"_{name}".endswith(f"_{part}") and _plain(local[part]) == values[name]
        }
        found = (names | same | set(local.values())) & given.keys() - (_GROUPS - said)
        if found:
            return [given[name] for name in given if name in (found & said or found)]
    return [given[name] for name in given if name in said and not values[name].isdigit()]


def _plain(text: str) -> str:
    """Return a text in small letters, for names of classes are written in another way."""
    return text.lower().replace("_", "").replace("-", "")


def reason_of(error: BaseException) -> str:
    """Return an error in one short line, with its kind unless its message is a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # an error of a process that loads data ends with the original one
    text = lines[-1] if "Traceback (most recent call last)" in str(error) else " ".join(lines)
    text = f"{text[:_MOST_CHARACTERS]}…" if len(text) > _MOST_CHARACTERS else text.rstrip(".")
    is_sentence = " " in text and not isinstance(error, LookupError | AttributeError | TypeError)
    return text if is_sentence else f"{type(error).__name__}: {text}"


@cache
def _words(file: str, line: int) -> tuple[set[str], set[str]]:
    """Return the attributes and texts at a line of code, and its variables."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return set(), set()
    nodes = [node for part in _parts(tree, line) for node in ast.walk(part)]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    names = {node.attr for node in attributes}
    # as `cfg.encoder.layers`
    names |= {f"{getattr(node.value, 'attr', '')}_{node.attr}" for node in attributes}
    texts = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    return names | texts, {node.id for node in nodes if isinstance(node, ast.Name)}


def _parts(tree: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yield the statement at a line, and the conditions of those around it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            if not hasattr(node, "body"):
                yield node
            for field in ("test", "target"):  # of `if`, `while` and `for`
                if hasattr(node, field):
                    yield getattr(node, field)
