"""Define the options of a command or of a block of a configuration, once for both.

A command takes a model as one argument, and has an option for each field: the description is its
help, bounds are its bounds. A block of a file is checked by the same model.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from highrank_plugins.common.names import did_you_mean
from highrank_plugins.common.yaml_tree import ConfigurationError, KeyPath, Tree

Model = TypeVar("Model", bound=BaseModel)


def option(
    default: Any,
    text: str,
    shown: dict[str, Any] | None = None,
    *,
    ge: float | None = None,
    le: float | None = None,
) -> Any:
    """Return a field with its help and bounds; `shown` has a metavar, or the words of a flag."""
    return Field(default, description=text, json_schema_extra=shown, ge=ge, le=le)


class BlockOptions(BaseModel):
    """Hold the options of a block."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


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
    for problem in error.errors():
        path = block + tuple(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            inner = (
                keys
                for each in schema.get("$defs", {}).values()
                for keys in each.get("properties", ())
            )
            message = f"unknown key{did_you_mean(path[-1], [*schema['properties'], *inner])}"
        elif problem["type"] == "dict_type":
            message = f"expected options; write `{path[-1]}: {{}}` for a block without options"
        elif problem["type"] == "model_type":
            message = "expected options, such as `KEY: VALUE`"
        elif problem["input"] is None:
            message += '; write "null", with the quotes, to remove an option'
        yield f"{tree.place(path)}: {'.'.join(path)}{': ' if path else ''}{message}"
