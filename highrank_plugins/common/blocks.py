"""Define the options of a command or of a block of a configuration, once for both, and read files.

YAML files inherit, and every value knows its file and line. Scalars are read as in YAML 1.2: `no`
is a word (Norwegian) and `12:30` is text, as is a date. A number with an exponent needs a point:
`1e-3` is text, which fairseq reads itself. Aliases (`*name`) are refused: a kilobyte of them can
stand for more than a memory holds.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from highrank_plugins.common.formatting import size
from highrank_plugins.common.names import did_you_mean

KeyPath = tuple[str, ...]
MOST_YAML = 1 << 20  # bytes, which take seconds to read; none of our files has a tenth of it
Model = TypeVar("Model", bound=BaseModel)


class ConfigurationError(ValueError):
    """Report a wrong configuration: one line per problem, each with its place."""


@dataclass
class Tree:
    """Hold nested values and where each was written: key path → `file:line`."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, str] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str:
        """Return the place of a value, or of the nearest block around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, "configuration")


def option(
    default: Any,
    text: str,
    shown: dict[str, Any] | None = None,
    *,
    ge: float | None = None,
    le: float | None = None,
) -> Any:
    """Return a field with its help and bounds; `shown` has a metavar, or the words of a flag."""
    of_typer = {**(shown or {}), "min": ge, "max": le}
    return Field(default, description=text, json_schema_extra=of_typer, ge=ge, le=le)


class BlockOptions(BaseModel):
    """Hold the options of a block."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def validated(model: type[Model], tree: Tree) -> Model:
    """Return the values of a file as a model."""
    try:
        return model.model_validate(tree.values)
    except ValidationError as error:
        raise ConfigurationError("\n".join(explained_places(model, tree, error))) from None


def explained_places(
    model: type[BaseModel], tree: Tree, error: ValidationError, block: KeyPath = ()
) -> Iterator[str]:
    """Yield a line with file and line number for each problem that a model has with a block."""
    schema = model.model_json_schema()
    parts = (schema, *schema.get("$defs", {}).values())
    keys = {key for of in parts for key in of.get("properties", ())}
    for problem in error.errors():
        path = (*block, *map(str, problem["loc"]))
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = f"unknown key{did_you_mean(path[-1], keys - {path[-1]})}"
        yield f"{tree.place(path)}: {'.'.join(path)}{': ' if path else ''}{message}"


def read_tree(path: Path, below: tuple[Path, ...] = (), *, may_inherit: bool = True) -> Tree:
    """Read a file over the file that its key `base` names; `null` removes an inherited key."""
    path = path.resolve()
    if path in below:
        raise ConfigurationError(f"{path}: inherits from itself through `base`")
    tree = read_alone(path)
    base = tree.values.pop("base", None)
    if base is None:
        return tree
    if not may_inherit:
        raise ConfigurationError(
            f"{tree.place(('base',))}: base is not allowed here; write all values into this file"
        )
    if not isinstance(base, str):
        raise ConfigurationError(f"{tree.place(('base',))}: base must be the name of a file")
    inherited = read_tree(path.parent / base, (*below, path))
    # blocks that nothing is inherited for stay, for the reader to refuse
    empty = {k: None for k, v in tree.values.items() if v is None and k not in inherited.values}
    _merge(inherited.values, tree.values)
    inherited.values |= empty
    inherited.places |= tree.places
    return inherited


def read_alone(path: Path) -> Tree:
    """Read a file in which `base` is a key as any other."""
    if not path.is_file():
        raise ConfigurationError(f"{path}: no such configuration{_hint(path)}")
    tree = _parse(path)
    tree.places[()] = str(path)  # the place to report for missing blocks
    return tree


def override(tree: Tree, assignment: str, default_block: str) -> None:
    """Apply `block.key=value`, or `key=value` of a `default_block`; `null` removes key or block."""
    name, equals, text = assignment.partition("=")
    path = tuple(name.split(".")) if "." in name else (default_block, name)
    if not equals or not all(path):
        raise ConfigurationError(f"--set {assignment}: write --set key=value or block.key=value")
    try:
        value = yaml.load(text, _Loader)
    except _INVALID as error:
        raise ConfigurationError(f"--set {assignment}: {_problem(error)[0]}") from None
    if value is None and path not in tree.places:  # of a key, or of the block `name`
        if name not in tree.values:
            raise ConfigurationError(f"--set {name}=null: there is no {'.'.join(path)} to remove")
        path = (name,)
    for other, earlier in tree.places.items():
        if earlier.startswith("--set ") and other[: len(path)] == path:
            raise ConfigurationError(f"--set {assignment}: {earlier} sets this, too; keep one")
    for key in reversed(path):
        value = {key: value}
    _merge(tree.values, value)
    tree.places[path] = f"--set {assignment}"


def _hint(path: Path) -> str:
    """Suggest files of the folder `conf` around a missing one, or of its own folder."""
    tops = (folder for folder in path.parents if folder.name == "conf" and folder.is_dir())
    top = next(tops, path.parent)
    files = top.rglob("*.yaml") if top.name == "conf" else top.glob("*.yaml")
    names = (file.relative_to(top).with_suffix("").as_posix() for file in (path, *sorted(files)))
    name, *known = names
    return did_you_mean(name, known) or f"; there are: {', '.join(known) or 'none'}"


class _Loader(yaml.SafeLoader):
    """Load YAML as PyYAML's safe loader does, without aliases, with the scalars of YAML 1.2."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.MarkedYAMLError(
                problem=f"the alias *{event.anchor} is not allowed; write the value out",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":null", ":merge"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern, _firsts in (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "[-+]?(0|[1-9][0-9_]*|0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+)", "-+0123456789"),
    ("float",
     r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|"
     r"\.(nan|NaN|NAN)", "-+0123456789."),
):  # fmt: skip
    _whole = re.compile(f"(?:{_pattern})$")
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _whole, list(_firsts))


_INVALID = (yaml.YAMLError, ValueError, RecursionError)


def _problem(error: Exception) -> tuple[str, str]:
    """Return what is wrong with YAML, and `:LINE` if the error knows it."""
    mark = getattr(error, "problem_mark", None)
    text = getattr(error, "problem", None) or " ".join(str(error).split())
    return f"invalid YAML: {text}", f":{mark.line + 1}" if mark else ""


def _parse(path: Path) -> Tree:
    if (found := path.stat().st_size) > MOST_YAML:
        raise ConfigurationError(f"{path}: {size(found)}, and {size(MOST_YAML)} are read at most")
    tree = Tree()
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        if isinstance(node, yaml.MappingNode):
            tree.values = _plain(loader, node, path, (), tree.places)
            return tree
    except ConfigurationError:
        raise
    except _INVALID as error:
        text, line = _problem(error)
        raise ConfigurationError(f"{path}{line}: {text}") from None
    raise ConfigurationError(f"{path}: must hold `key: value` lines")


def _plain(
    loader: _Loader, node: yaml.Node, file: Path, path: KeyPath, places: dict[KeyPath, str]
) -> Any:
    if isinstance(node, yaml.SequenceNode):
        parts = enumerate(node.value)
        return [_plain(loader, part, file, (*path, str(n)), places) for n, part in parts]
    if not isinstance(node, yaml.MappingNode):
        try:
            return loader.construct_object(node)
        except (AttributeError, KeyError, ValueError):  # of !!timestamp, !!bool, !!int and 0x_
            problem = f"{node.value!r} is not a valid {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(_plain(loader, key_node, file, path, places))
        place = f"{file}:{key_node.start_mark.line + 1}"
        if key in values:
            raise ConfigurationError(f"{place}: {key} is given twice")
        places[(*path, key)] = place
        values[key] = _plain(loader, value_node, file, (*path, key), places)
    return values


def _merge(into: dict[str, Any], update: Mapping[str, Any]) -> None:
    for key, value in update.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
