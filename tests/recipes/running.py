"""Recipes run as a person runs them, on text of a few hundred lines."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from highrank_plugins.training.configuration import load

REPOSITORY = Path(__file__).parents[2]
RECIPES = REPOSITORY / "recipes"
TEXT = REPOSITORY / "tests" / "text" / "tiny"
# a model so small that starting fairseq is all that takes time
SMALL = dict(
    word.split("=")
    for word in """data.vocab_size=200 encoder_layers=1 decoder_layers=1 encoder_embed_dim=16
        decoder_embed_dim=16 encoder_ffn_embed_dim=16 decoder_ffn_embed_dim=16 max_tokens=600
        max_epoch=3 save_interval_updates=0 keep_last_epochs=3 log_interval=2 average.last=2
        generate.max_len_b=5""".split()
)


def overrides(**changes: object) -> list[str]:
    """Return SMALL with changes (`generate__beam` for `generate.beam`) as words for `--set`."""
    options = SMALL | {name.replace("__", "."): value for name, value in changes.items()}
    return [f"{name}={value}" for name, value in options.items()]


def recipe(name: str, *arguments: object, settings: list[str] | None = None) -> list[str]:
    """Return the command line of a recipe."""
    flags = [word for setting in settings or [] for word in ("--set", setting)]
    return ["bash", str(RECIPES / name / "run.sh"), *map(str, arguments), *flags]


def run(command: list[str], code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a recipe, which must end with an exit code."""
    environment = os.environ | environment
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == code, done.stderr[-3000:]
    return done


def refused(command: list[str], *messages: str, **environment: str) -> str:
    """Run a recipe that is refused with some messages; return its output."""
    said = run(command, 2, **environment).stderr
    for message in messages:
        assert message in said
    return said


def kill_when(command: list[str], written: Callable[[], Path], seconds: float = 0) -> None:
    """Send SIGKILL to a recipe and its children `seconds` after a file or folder exists."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        while process.poll() is None and not written().exists():
            time.sleep(0.01)
        time.sleep(seconds)
        log.seek(0)
        assert process.poll() is None, log.read()[-3000:]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def stages_done(result: subprocess.CompletedProcess[str]) -> list[int]:
    """Return the numbers of the stages that did something."""
    rows = (row.split() for row in result.stderr.splitlines())
    return [int(row[3]) for row in rows if row[2:3] == ["stage"] and row[5:7] == ["done", "in"]]


def accept(name: str, conf: str, run_dir: Path, settings: list[str] | None = None) -> None:
    """Leave the configuration as `highrank train configure` would, without its slow check."""
    run_dir.mkdir(parents=True, exist_ok=True)
    configuration = load(RECIPES / name / "conf" / f"{conf}.yaml", settings or [])
    (run_dir / "config.yaml").write_text(configuration.text())
    (run_dir / ".lock").touch()  # a recipe leaves alone what looks like somebody else's


def raw_text(folder: Path) -> Path:
    """Write the tiny text under the names of Multi30k."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in TEXT.iterdir():
        shutil.copy(path, folder / path.name.replace("test", "test2016"))
    return folder
