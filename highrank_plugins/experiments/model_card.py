"""The text that comes with a published model: what it is, and how it is used."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from highrank_plugins._flags import flag

_CARD = """\
---
library_name: fairseq
license: {licence}
tags: [{task}, {arch}]
---
# {name}

`{arch}` for the task `{task}`{languages}, exported by `highrank export`.

| | |
|---|---|
{rows}

## Use

Needs `highrank_plugins` {version} or later with its extra `export`. The files hold numbers and
plain text: reading them runs nothing.

```bash
highrank import {name} --output {name}.pt
{command}
```

The text must be cut into words or pieces as the training text was: the dictionaries beside this
file ({dictionaries}) list what the model knows.

## Limits

What it was trained on, and what it must not be used for, is for its authors to say here.
"""


def model_card(
    name: str,
    config: dict[str, Any],
    parameters: int,
    dictionaries: Sequence[Path],
    licence: str,
) -> str:
    """The card of an exported model, in Markdown.

    Args:
        config: what `config.json` holds.
        parameters: their number, tied ones once.
    """
    cfg = config["fairseq"]
    task = cfg["task"]["_name"]
    return _CARD.format(
        name=name,
        licence=licence,
        task=task,
        arch=cfg["model"].get("arch") or cfg["model"]["_name"],
        languages=_languages(cfg["task"]),
        rows="\n".join(f"| {key} | {value} |" for key, value in _rows(config, parameters)),
        version=config["versions"]["highrank_plugins"],
        command=_command(name, cfg["task"]),
        dictionaries=", ".join(f"`{path.name}`" for path in dictionaries),
    )


def _languages(task: dict[str, Any]) -> str:
    source, target = task.get("source_lang"), task.get("target_lang")
    return f" from {source} to {target}" if source and target else ""


def _rows(config: dict[str, Any], parameters: int) -> list[tuple[str, object]]:
    """Sizes, training, and every option of the output layer that is set."""
    model = config["fairseq"]["model"]
    rows: list[tuple[str, object]] = [
        ("parameters", f"{parameters:,}"),
        ("updates", f"{config['training']['num_updates']:,}"),
    ]
    if config["valid_loss"] is not None:
        rows.append(("loss on the validation set", config["valid_loss"]))
    rows += [
        (f"`{flag(name)}`", value)
        for name, value in sorted(model.items())
        if name == "head" or (name.startswith("head_") and value is not None)
    ]
    return [*rows, *(("with " + name, value) for name, value in config["versions"].items())]


def _command(name: str, task: dict[str, Any]) -> str:
    if "language_modeling" in task["_name"]:
        words = f"fairseq-eval-lm DATA_BIN {_scoring(task)}"
    else:
        pair = f"--source-lang {task.get('source_lang')} --target-lang {task.get('target_lang')}"
        words = f"fairseq-interactive {name} {pair}"
    return f"{words} --user-dir $(highrank user-dir) --path {name}.pt"


def _scoring(task: dict[str, Any]) -> str:
    """What fairseq-eval-lm does not take from the checkpoint."""
    blocks = task["_name"] == "language_modeling"
    length = f" --tokens-per-sample {task['tokens_per_sample']}" if blocks else ""
    return f"--task {task['_name']}{length}"
