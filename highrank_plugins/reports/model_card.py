"""Write the card of a published model: what it is, and how to use it."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from highrank_plugins.common.formatting import cell
from highrank_plugins.common.names import criterion, flag

_CARD = """\
---
library_name: fairseq
license: {licence}
tags: [{tags}]
---
# {name}

`{arch}` for the task `{task}`{languages}, exported by `highrank model export`.

| | |
|---|---|
{rows}

## Use

Needs `highrank_plugins` {version} or later with its extra `export`. The files hold numbers and
plain text: reading them runs nothing.

```bash
highrank model import {folder} --output {weights}
{command}
```

{text}
The model's words are in the dictionaries next to this file ({dictionaries}).

## Limits

The authors should state here what it was trained on, how it scores, and what it must not be used
for.
"""

_UNCUT = "The text must be split into words or pieces like the training text."
_CUTS = "The command takes text as people write it, a sentence per line, and splits it into pieces "
_CUTS += "as the training text was split: {steps}."
_STEPS = {
    "sentencepiece": "white space is folded, then the model of SentencePiece is applied",
    "subword_nmt": "white space is folded, punctuation is normalised and tokens are split as Moses "
    "does it, then the codes are applied",
}


def model_card(
    name: str,
    config: dict[str, Any],
    parameters: int,
    dictionaries: Sequence[Path],
    piece_options: Sequence[tuple[str, str]],
    licence: str,
) -> str:
    """Return the card in Markdown; with `piece_options` fairseq-interactive takes raw text."""
    cfg, shown = config["fairseq"], _rows(config, parameters)
    task = cfg["task"]["_name"]
    source, target = (cfg["task"].get(f"{side}_lang") for side in ("source", "target"))
    arch = cfg["model"].get("arch") or cfg["model"]["_name"]
    return _CARD.format(
        name=cell(name),
        folder=_code(shlex.quote(name)),
        weights=_code(shlex.quote(f"{name}.pt")),
        licence=_scalar(licence),
        tags=f"{_scalar(task)}, {_scalar(arch)}",
        task=_code(task),
        arch=_code(arch),
        languages=f" from {_shown(source)} to {_shown(target)}" if source and target else "",
        rows="\n".join(f"| {cell(key)} | {cell(_shown(value))} |" for key, value in shown),
        version=config["versions"]["highrank_plugins"],
        command=_code(_command(name, cfg, piece_options)),
        text=_UNCUT
        if _scores_only(task) or not piece_options
        else _CUTS.format(steps=_STEPS[dict(piece_options)["--bpe"]]),
        dictionaries=", ".join(f"`{_code(path.name)}`" for path in dictionaries),
    )


def _scalar(text: str) -> str:
    """Return text as a value of YAML, in quotes unless it is a plain word."""
    return text if re.fullmatch(r"[\w.-]+", text) else json.dumps(text)


def _code(text: str) -> str:
    """Return text that is safe between backticks."""
    return re.sub(r"[`\s]+", " ", text)


def _shown(value: object) -> str:
    """Return a value of the checkpoint's author, between backticks unless it is plain words."""
    text = str(value)
    return text if re.fullmatch(r"[\w.,:+() -]*", text) else f"`{_code(text)}`"


def _rows(config: dict[str, Any], parameters: int) -> list[tuple[str, object]]:
    """Return sizes, training, and every option of the output layer that is set."""
    model = config["fairseq"]["model"]
    rows: list[tuple[str, object]] = [
        ("parameters", f"{parameters:,}"),
        ("updates", f"{config['training']['num_updates']:,}"),
    ]
    if config["valid_loss"] is not None:
        chosen = config["fairseq"].get("checkpoint") or {}
        metric, _ = criterion(chosen)
        rows.append((f"{_shown(metric)} on the validation set", config["valid_loss"]))
    rows += [
        (f"`{_code(flag(name))}`", value)
        for name, value in sorted(model.items())
        if name == "head" or (name.startswith("head_") and value is not None)
    ]
    return [*rows, *((f"{name} version", value) for name, value in config["versions"].items())]


def _command(name: str, cfg: dict[str, Any], pieces: Sequence[tuple[str, str]]) -> str:
    task, kind = cfg["task"], cfg["task"]["_name"]
    if _scores_only(kind):  # with the options that fairseq-eval-lm does not take from checkpoints
        size = kind == "language_modeling"
        length = ["--tokens-per-sample", str(task["tokens_per_sample"])] if size else []
        words = f"fairseq-eval-lm DATA_BIN {shlex.join(['--task', kind, *length])}"
    else:
        sides = ("source", "target")
        languages = [str(task.get(f"{side}_lang") or f"{side.upper()}_LANGUAGE") for side in sides]
        pair = ["--source-lang", languages[0], "--target-lang", languages[1]]
        cut = [word for option in pieces for word in option]
        words = shlex.join(["fairseq-interactive", name, *pair, *cut])
    # the run's user-dir, a package that may register further layers
    package = Path(cfg["common"].get("user_dir") or "highrank_plugins").name
    ours = package == "highrank_plugins"
    user_dir = "$(highrank --user-dir)" if ours else shlex.quote(package)
    return f"{words} --user-dir {user_dir} --path {shlex.quote(f'{name}.pt')}"


def _scores_only(task: str) -> bool:
    return "language_modeling" in task
