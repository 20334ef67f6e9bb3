"""Provide `highrank translate`: lines of standard input to translations, by any form of a model."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import typer

from highrank_plugins.cli.options import UserDir
from highrank_plugins.common.blocks import option
from highrank_plugins.common.processes import end_with_parent

# of a recipe's run or a --save-dir, the best first
_CHECKPOINTS = (
    "average/checkpoint.pt", "train/checkpoint_best.pt", "train/checkpoint_last.pt",
    "checkpoint_best.pt", "checkpoint_last.pt",
)  # fmt: skip
_TRANSLATION = re.compile(rb"D-(\d+)\t[^\t]*\t(.*)")


class _Model(NamedTuple):
    checkpoint: Path
    data: Path  # has the dictionaries
    pieces: Path | None
    task: dict[str, Any]


def translate(
    model: Annotated[Path, "Checkpoint, folder of a recipe's run, or exported model."],
    data: Path | None = option(None, "Folder with the dictionaries (default: the training run's)."),
    pieces: Path | None = option(None, "SentencePiece's model, or subword-nmt's codes."),
    beam: int = option(5, "Size of the beam.", ge=1),
    user_dir: UserDir = None,
) -> None:
    """Translate the lines of standard input.

    Example: highrank translate exp/ui_strings_en_de/quickstart

    Prints a line for each, in order, as plain text.
    """
    from highrank_plugins.common.text_lines import fold, require_unreserved

    with TemporaryDirectory(prefix="highrank-translate-") as scratch:
        found = _find(model, data, pieces, Path(scratch))
        if sys.stdin.isatty():
            typer.echo("type lines; Ctrl-D ends them", err=True)
        text = sys.stdin.buffer.read().decode("utf-8")
        lines = [fold(line) for line in text.removesuffix("\n").split("\n")] if text else []
        full = [number for number, line in enumerate(lines) if line]
        asked = "".join(f"{require_unreserved(lines[number])}\n" for number in full)
        translations = dict.fromkeys(range(len(lines)), "")
        for number, line in _run(found, asked, beam, user_dir).items():
            translations[full[number]] = line
    for line in translations.values():
        typer.echo(line)


def _find(model: Path, data: Path | None, pieces: Path | None, scratch: Path) -> _Model:
    """Return the files of a model; an exported one becomes a checkpoint in `scratch`."""
    is_exported = (model / "model.safetensors").is_file()
    places = [model / name for name in _CHECKPOINTS] if model.is_dir() else [model]
    checkpoint = next(filter(Path.is_file, places), None)
    if is_exported:
        from highrank_plugins.reports.model_folder import import_model

        checkpoint, data = scratch / "model.pt", data or model
        import_model(model, checkpoint)
    if checkpoint is None:
        raise ValueError(f"{model}: neither a checkpoint, nor a folder with one or with a model")
    from highrank_plugins.common.checkpoint_file import read_checkpoint

    task = dict(read_checkpoint(checkpoint, "cfg")["task"])
    if "target_lang" not in task:
        raise ValueError(f"{model}: trained for {task['_name']}; a translator is needed")
    trained_on = Path(str(task["data"]).split(":")[0])
    places = [data] if data else [trained_on, model / "data-bin", model.parent / "data-bin"]
    there = next((place for place in places if any(place.glob("dict.*txt"))), None)
    if there is None:
        raise ValueError(f"{places[0]}: no dictionaries; name their folder with --data")
    if pieces is None:
        folders = (there, there.parent / "pieces")
        names = [folder / name for folder in folders for name in ("pieces.model", "codes")]
        pieces = next(filter(Path.is_file, names), None)
        if pieces is None:
            typer.echo("no pieces beside the dictionaries: lines are taken as words", err=True)
    return _Model(checkpoint, there, pieces, task)


def _run(model: _Model, text: str, beam: int, user_dir: Path | None) -> dict[int, str]:
    """Return translations by their numbers, from fairseq-interactive."""
    import highrank_plugins
    from highrank_plugins.data.pieces import piece_options

    cut = piece_options(model.pieces, str(model.pieces)) if model.pieces else []
    pair = [f"--{side}-lang={model.task[f'{side}_lang']}" for side in ("source", "target")]
    program = Path(sys.executable).with_name("fairseq-interactive")
    package = user_dir or Path(highrank_plugins.__file__).parent
    command = [
        str(program) if program.exists() else shutil.which(program.name) or program.name,
        str(model.data), *pair, *(word for words in cut for word in words), "--path",
        str(model.checkpoint), "--beam", str(beam), "--buffer-size", "1000", "--batch-size", "32",
        "--user-dir", str(package),
    ]  # fmt: skip
    done = subprocess.run(
        command, input=text.encode(), capture_output=True, preexec_fn=end_with_parent
    )
    found = {int(n): line.decode() for n, line in _TRANSLATION.findall(done.stdout)}
    if done.returncode or len(found) != text.count("\n"):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no translations"]
        raise ValueError(f"fairseq-interactive failed: {last[0]}")
    return found
