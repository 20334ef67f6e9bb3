"""Generate the reference pages from the code: commands, options and configuration keys.

They lie in docs/reference/generated/, which git ignores.
"""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import highrank_plugins
from highrank_plugins.common.formatting import table
from highrank_plugins.common.names import flag

SIGNS = re.compile(r"([\\*_<>|\[\]#])")


def escaped(text: str) -> str:
    """Escape Markdown's special characters outside of `code`, and join the lines of a paragraph."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    parts[::2] = [SIGNS.sub(r"\\\1", part) for part in parts[::2]]
    return "".join(parts).replace("|", "\\|") if "`" in text else "".join(parts)


def command_pages() -> dict[str, str]:
    """Return the pages of `highrank` commands: one for each group, and the list of all."""
    import typer

    from highrank_plugins.cli import COMMANDS, app

    root = typer.main.get_command(app)
    context = root.make_context("highrank", ["doctor"], resilient_parsing=True)
    pages, listed = {}, []
    for name, (summary, _) in COMMANDS.items():
        command = root.get_command(context, name)
        inner = getattr(command, "commands", {})
        commands = {f"highrank {name} {sub}": one for sub, one in inner.items()}
        commands = commands or {f"highrank {name}": command}
        sections = [part for key, one in commands.items() for part in command_section(key, one)]
        parts = [f"# highrank {name}", *([summary, links(commands)] if inner else [])]
        pages[f"commands/{name}"] = (
            "\n\n".join([*parts, *(sections if inner else sections[1:])]) + "\n"
        )
        listed.append(
            (f"[highrank {name}](commands/{name}.md)", escaped(summary), ", ".join(inner))
        )
    toc = "\n".join(pages)
    parts = [
        "# Commands",
        "This page is generated from the code. `highrank COMMAND --help` prints the same.",
        table(("command", "what it does", "its commands"), listed).strip(),
        f"```{{toctree}}\n:hidden:\n\n{toc}\n```",
    ]
    return {"commands": "\n\n".join(parts) + "\n", **pages}


def links(commands: dict[str, Any]) -> str:
    """Return a list of links to the sections of commands, each with what it does."""
    first = {key: (one.help or "").strip().partition("\n\n")[0] for key, one in commands.items()}
    lines = (f"- [{key}](#{key.replace(' ', '-')}): {escaped(said)}" for key, said in first.items())
    return "\n".join(lines)


def command_section(name: str, command: Any) -> Iterator[str]:
    """Yield heading, help and options of a command."""
    yield f"## {name}"
    paragraphs = re.split(r"\n\s*\n", (command.help or "").replace("\b", "").strip())
    for paragraph in paragraphs:
        if paragraph.startswith("Example: "):
            yield f"```text\n{' '.join(paragraph.removeprefix('Example: ').split())}\n```"
        else:
            yield escaped(paragraph)
    if command.hidden:
        yield "Recipes call this command; the help of its group does not list it."
    rows = [option_row(parameter) for parameter in command.params if parameter.name != "help"]
    if rows:
        yield table(("option", "meaning", "default"), rows).strip()


def option_row(parameter: Any) -> tuple[str, str, str]:
    """Return name, help and default of an option or argument."""
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    default = parameter.default
    if parameter.required:
        shown = "required"
    elif default is None or default is False or default == () or default == [] or callable(default):
        shown = ""
    elif default is True:
        shown = "on"
    else:
        shown = (
            f"`{', '.join(map(str, default)) if isinstance(default, (list, tuple)) else default}`"
        )
    return names, escaped(getattr(parameter, "help", None) or ""), shown


def options_page() -> str:
    """Return the page of the options that our models add to fairseq's commands."""
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    highrank_plugins.register()
    from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
    from fairseq.models import MODEL_DATACLASS_REGISTRY
    from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY
    from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    from highrank_plugins.models.head_options import HeadOptions

    models = MODEL_DATACLASS_REGISTRY
    head = {
        name: field
        for name, field in fields_of(models["transformer_highrank"]).items()
        if name.startswith("head")
    }
    relative = {
        name: field
        for name, field in fields_of(models["transformer_highrank"]).items()
        if name.startswith("rel_pos")
    }
    assert set(fields_of(HeadOptions)) - {"_name"} <= set(head)
    own = {
        "Relative positions": relative,
        "`--arch awd_lstm_lm_<layer>`": {
            name: field
            for name, field in fields_of(models["awd_lstm_lm"]).items()
            if not name.startswith(("head", "rel_pos"))
        },
        "`--criterion highrank_cross_entropy`": fields_of(
            CRITERION_DATACLASS_REGISTRY["highrank_cross_entropy"]
        ),
        "`--criterion bptt_cross_entropy`": fields_of(
            CRITERION_DATACLASS_REGISTRY["bptt_cross_entropy"]
        ),
        "`--task bptt_language_modeling`": fields_of(
            TASK_DATACLASS_REGISTRY["bptt_language_modeling"]
        ),
        "`--optimizer nt_asgd`": fields_of(OPTIMIZER_DATACLASS_REGISTRY["nt_asgd"]),
        "`--lr-scheduler t2t_noam`": fields_of(LR_SCHEDULER_DATACLASS_REGISTRY["t2t_noam"]),
    }
    parts = [
        "# Options of fairseq-train",
        "This page is generated from the code. These options exist with `--user-dir "
        "highrank_plugins`, in addition to fairseq's own.",
    ]
    for title, fields in {"The head": head, **own}.items():
        rows = [field_row(field) for name, field in fields.items() if name != "_name"]
        parts += [f"## {title}", table(("option", "meaning", "default"), rows).strip()]
    return "\n\n".join(parts) + "\n"


def fields_of(dataclass: type) -> dict[str, Any]:
    return {name: field for name, field in dataclass.__dataclass_fields__.items()}


def field_row(field: Any) -> tuple[str, str, str]:
    """Return flag, help and default of a dataclass field."""
    default = field.default
    plain = isinstance(default, (int, float, str)) and not isinstance(default, bool)
    shown = f"`{default}`" if plain and not str(default).startswith("${") else ""
    return f"`{flag(field.name)}`", escaped(field.metadata.get("help", "")), shown


def configuration_page(schema: dict[str, Any]) -> str:
    """Return the page of the blocks and keys of a recipe's configuration."""
    from highrank_plugins.measures import find_measure, measure_names
    from highrank_plugins.training.blocks import MODELS, PROGRAMS

    meanings = {
        "data": "Splits parallel text into pieces.",
        "corpus": "Prepares the text of a language model.",
        "clean": "Drops sentence pairs that do not fit.",
        "launch": "Starts the training run on several processes.",
        "train": "Trains the model.",
        "finetune": "Trains it again; holds only what differs from `train`.",
        "average": "Averages the last checkpoints.",
        "generate": "Translates the test set.",
        "evaluate": "Evaluates a language model while it adapts to the text.",
    }
    rows = []
    for name in schema["properties"]:
        program = PROGRAMS.get(name)
        keys = "see below"
        if program and name not in MODELS:
            keys = f"options of `{program}`, with underscores"
        rows.append((f"`{name}`", meanings[name], keys))
    parts = [
        "# Keys of a configuration",
        "This page is generated from the code. A file `recipes/RECIPE/conf/NAME.yaml` holds "
        "blocks. Editors check it with the {download}`JSON schema <configuration.schema.json>`.",
        table(("block", "what it does", "keys"), rows).strip(),
    ]
    for block, model in MODELS.items():
        keys = model.model_json_schema()
        own = [key_row(key, value, keys) for key, value in keys["properties"].items()]
        parts += [f"## `{block}`", table(("key", "meaning", "type", "default"), own).strip()]
    measures = [
        (f"`{name}`", escaped((find_measure(name).__doc__ or "").strip().partition("\n")[0]))
        for name in measure_names()
    ]
    parts += [
        "## Measures",
        "A block with the name of a measure takes it on the test set, even if the block is empty.",
        table(("block", "what it measures"), measures).strip(),
    ]
    return "\n\n".join(parts) + "\n"


def key_row(name: str, value: dict[str, Any], block: dict[str, Any]) -> tuple[str, ...]:
    """Return name, meaning, type and default of a key."""
    kinds = [kind.get("type", "") for kind in value.get("anyOf", [value])]
    kind = ", ".join(value["enum"]) if "enum" in value else " or ".join(kinds)
    required = name in block.get("required", [])
    default = "required" if required else f"`{value.get('default')}`"
    return f"`{name}`", escaped(value.get("description", "")), kind, default


def write(app: Sphinx) -> None:
    """Write all pages; leave unchanged files alone, so that Sphinx need not read them again."""
    from highrank_plugins.training.configuration import Configuration

    folder = Path(app.srcdir) / "reference" / "generated"
    (folder / "commands").mkdir(parents=True, exist_ok=True)
    schema = Configuration.model_json_schema()
    pages = {
        **{f"{name}.md": text for name, text in command_pages().items()},
        "options.md": options_page(),
        "configuration.md": configuration_page(schema),
        "configuration.schema.json": json.dumps(schema, indent=2) + "\n",
    }
    for name, text in pages.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before Sphinx looks for files."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
