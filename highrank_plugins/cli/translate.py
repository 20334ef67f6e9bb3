"""Provide `highrank translate`: lines of standard input to translations, by any form of a model."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

import highrank_plugins
from highrank_plugins.cli.options import UserDir
from highrank_plugins.common.blocks import option
from highrank_plugins.common.checkpoint_file import read_checkpoint
from highrank_plugins.common.processes import end_with_parent
from highrank_plugins.common.text_lines import decode_line, fold, require_unreserved
from highrank_plugins.data.pieces import piece_options

# of a recipe's run or a --save-dir, the best first
_CHECKPOINTS = (
    "average/checkpoint.pt", "train/checkpoint_best.pt", "train/checkpoint_last.pt",
    "checkpoint_best.pt", "checkpoint_last.pt",
)  # fmt: skip
_TRANSLATION = re.compile(rb"D-(\d+)\t[^\t]*\t(.*)")


def translate(
    model: Annotated[Path, "Checkpoint, folder of a recipe's run, or exported model."],
    data: Path | None = option(None, "Folder with the dictionaries (default: the training run's)."),
    pieces: Path | None = option(None, "SentencePiece's model, or subword-nmt's codes."),
    beam: int = option(5, "Size of the beam.", ge=1),
    user_dir: UserDir = None,
) -> None:
    """Translate the lines of standard input.

    Example: highrank translate exp/ui_strings_en_de/quickstart

    Prints a line for each, in order, as plain text. An empty line stays empty. Of a run, the
    averaged checkpoint is taken, or else the best.
    """
    with TemporaryDirectory(prefix="highrank-translate-") as scratch:
        words = _model(model, data, pieces, Path(scratch))
        words += ["--beam", str(beam), "--user-dir"]
        words += [str(user_dir or Path(highrank_plugins.__file__).parent)]
        rows = enumerate(sys.stdin.buffer, 1)
        text = (decode_line("standard input", n, row.removesuffix(b"\n")) for n, row in rows)
        lines = [require_unreserved(fold(line)) for line in text]
        found = _run(words, [line for line in lines if line])
    for line in lines:
        typer.echo(next(found) if line else "")


def _model(model: Path, data: Path | None, pieces: Path | None, scratch: Path) -> list[str]:
    """Return fairseq's words for a model; an exported one becomes a checkpoint in `scratch`."""
    if not model.exists():
        raise ValueError(f"{model}: no such file or folder; a recipe says where its run is")
    places = [model / name for name in _CHECKPOINTS] if model.is_dir() else [model]
    checkpoint = next(filter(Path.is_file, places), None)
    if (model / "model.safetensors").is_file():
        from highrank_plugins.reports.model_folder import import_model

        checkpoint, data = scratch / "model.pt", data or model
        import_model(model, checkpoint)
    if checkpoint is None:
        raise ValueError(f"{model}: neither a checkpoint, nor a folder with one or with a model")
    task = dict(read_checkpoint(checkpoint, "cfg")["task"])
    if "target_lang" not in task:
        raise ValueError(f"{model}: trained for {task['_name']}; a translator is needed")
    trained_on = Path(str(task["data"]).split(":")[0])
    places = [data] if data else [trained_on, model / "data-bin", model.parent / "data-bin"]
    there = next((place for place in places if any(place.glob("dict.*txt"))), None)
    if there is None:
        raise ValueError(f"{places[0]}: no dictionaries; name their folder with --data")
    folders = (there, there.parent / "pieces")
    names = [folder / name for folder in folders for name in ("pieces.model", "codes")]
    pieces = pieces or next(filter(Path.is_file, names), None)
    if pieces is None:
        typer.echo("no pieces beside the dictionaries: lines are taken as words", err=True)
    cut = piece_options(pieces, str(pieces)) if pieces else []
    pair = [f"--{side}-lang={task[f'{side}_lang']}" for side in ("source", "target")]
    return [str(there), *pair, *(w for words in cut for w in words), "--path", str(checkpoint)]


def _run(words: list[str], lines: list[str]) -> Iterator[str]:
    """Return the translations of lines, in their order, from fairseq-interactive."""
    beside = Path(sys.executable).with_name("fairseq-interactive")
    program = str(beside) if beside.exists() else shutil.which(beside.name) or beside.name
    done = subprocess.run(
        [program, *words, "--buffer-size", "1000", "--batch-size", "32"],
        input="".join(f"{line}\n" for line in lines).encode(),
        capture_output=True,
        preexec_fn=end_with_parent,
    )
    found = {int(number): line.decode() for number, line in _TRANSLATION.findall(done.stdout)}
    if done.returncode or len(found) != len(lines):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no translations"]
        raise ValueError(f"fairseq-interactive failed: {last[0]}")
    return iter([found[number] for number in sorted(found)])
