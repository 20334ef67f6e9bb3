"""Find the options of a command line that have led to an error of fairseq's, by its traceback."""

import ast
import linecache
import traceback
from collections.abc import Mapping, Sequence
from functools import cache

_SHORT = {"-a": "--arch", "-s": "--source-lang", "-t": "--target-lang"}
# names of parts of fairseq's configuration, which its code mentions for other reasons, too
_GROUPS = {"arch", "bpe", "criterion", "lr_scheduler", "optimizer", "scoring", "task", "tokenizer"}


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
    Without a mention, those count as well. A long number in the message speaks for itself.
    """
    message = _plain(str(error))
    values = {name: _plain(option.partition(" ")[2]) for name, option in given.items()}
    said = {name for name, value in values.items() if len(value) > 2 and value in message}
    if long := [given[name] for name in said if values[name].isdigit() and len(values[name]) > 4]:
        return long
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        names, variables = _words(frame.f_code.co_filename, line)
        known = [(n, frame.f_locals.get(n)) for n in variables]
        local = {n: _plain(str(v)) for n, v in known if isinstance(v, str | int)}
        # `embed_dim` may stand for `encoder_embed_dim`, and `num_base_layers` for `base_layers`
        same = {name for name in given for part in local if values[name] == local[part]
                and (f"_{name}".endswith(f"_{part}") or part.endswith(f"_{name}"))}  # fmt: skip
        texts = {name for name in given if _plain(name) in local.values()}
        if found := (names & given.keys() | same | texts) - (_GROUPS - said):
            return [given[name] for name in given if name in (found & said or found)]
    return [given[name] for name in given if name in said]


def _plain(text: str) -> str:
    """Return a text in small letters, for names of classes are written in another way."""
    return text.lower().replace("_", "").replace("-", "")


def reason_of(error: BaseException) -> str:
    """Return an error in one short line, with its kind unless its message is a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # an error of a process that loads data ends with the original one
    text = lines[-1] if "Traceback (most recent call last)" in str(error) else " ".join(lines)
    text = f"{text[:300]}…" if len(text) > 300 else text.rstrip(".")
    is_sentence = " " in text and not isinstance(error, LookupError | AttributeError | TypeError)
    return text if is_sentence else f"{type(error).__name__}: {text}"


@cache
def _words(file: str, line: int) -> tuple[set[str], set[str]]:
    """Return attributes and texts of a statement and its conditions, and its variables."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # of Cython
        return set(), set()
    nodes: list[ast.AST] = []
    for each in ast.walk(tree):
        if isinstance(each, ast.stmt) and each.lineno <= line <= (each.end_lineno or 0):
            heads = [getattr(each, name) for name in ("test", "target") if hasattr(each, name)]
            nodes += [
                n for part in (heads if hasattr(each, "body") else [each]) for n in ast.walk(part)
            ]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    # `cfg.encoder.layers` is `encoder_layers`
    names = {f"{getattr(node.value, 'attr', '')}_{node.attr}" for node in attributes}
    names |= {node.attr for node in attributes}
    names |= {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    names |= {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    return names, {node.id for node in nodes if isinstance(node, ast.Name)}
