"""Recipes run as a person runs them, on text of a few hundred lines."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from highrank_plugins.training.configuration import load

REPOSITORY = Path(__file__).parents[2]
RECIPES = REPOSITORY / "recipes"
TEXT = REPOSITORY / "tests" / "text" / "tiny"
SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
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
    flags = [word for setting in settings or [] for word in ("--set", setting)]
    return ["bash", str(RECIPES / name / "run.sh"), *map(str, arguments), *flags]


def run(
    command: list, code: int = 0, folder: Path | None = None, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a recipe or another program, which must end with an exit code."""
    done = subprocess.run(
        [*map(str, command)], cwd=folder, input=stdin, env=os.environ | environment,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stdout[-1000:] + done.stderr[-3000:]
    return done


def refused(command: list, *messages: str, **options) -> str:
    """Run a recipe that is refused with some messages; return its output."""
    said = run(command, 2, **options).stderr
    assert [message for message in messages if message not in said] == [], said
    return said


def write_program(path: Path, text: str) -> str:
    """Write an executable script; return a PATH on which it comes first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return f"{path.parent}:{os.environ['PATH']}"


def begin(command: list, folder: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    """Start a recipe in a group of its own, with the signals of a terminal."""

    def listen() -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    return subprocess.Popen(
        command, cwd=folder, env=os.environ | environment, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=listen,
    )  # fmt: skip


def wait_for(holds: Callable[[], bool], process: subprocess.Popen[str], seconds=300) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise AssertionError(process.communicate()[1][-3000:])
        time.sleep(0.01)


def kill(process: subprocess.Popen[str]) -> None:
    """Send SIGKILL to a recipe and its children."""
    assert process.poll() is None, process.communicate()[1][-3000:]
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def members(group: int) -> list[int]:
    """Return the processes of a group that run, those that load data among them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has just ended
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def left_of(group: int, seconds: float = 10) -> list[int]:
    """Return the processes of a group that still run after some seconds."""
    end = time.monotonic() + seconds
    while (left := members(group)) and time.monotonic() < end:
        time.sleep(0.1)  # workers that load data look for their parent every 5 seconds
    return left


def kill_when(command: list, holds: Callable[[], bool], seconds: float = 0) -> None:
    """Kill a recipe `seconds` after something holds."""
    process = begin(command)
    wait_for(holds, process)
    time.sleep(seconds)
    kill(process)


def stages_done(result: subprocess.CompletedProcess[str]) -> list[int]:
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


def multi30k(folder: Path, *words: object, conf: str = "softmax", **changes: object) -> list[str]:
    """Return the command of a run named `a` of that recipe on the tiny text, all below `folder`."""
    where = ["--data", raw_text(folder / "data"), "--text", "any", "--exp-dir", folder / "exp"]
    settings = overrides(**changes)
    return recipe(
        "multi30k_en_de", *where, "--conf", conf, "--name", "a", *words, settings=settings
    )
