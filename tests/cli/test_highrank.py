"""The command itself: help and its speed, the directory for fairseq, dry runs of `launch`."""

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest
import typer

import highrank_plugins
from highrank_plugins.cli import COMMANDS, HIDDEN, app
from tests.cli import highrank

HIGHRANK = Path(sys.executable).parent / "highrank"
ROOT = Path(__file__).parents[2]
LISTED = [
    line.split("\t")
    for line in Path(__file__).with_name("commands.tsv").read_text(encoding="utf-8").splitlines()
]


def found_commands():
    """Return every command by its words, and whether it is hidden."""
    root, found = typer.main.get_command(app), {}
    for name in root.list_commands(None):
        command = root.get_command(None, name)
        for inner, one in getattr(command, "commands", {"": command}).items():
            found[f"{name} {inner}".strip()] = one, one.hidden or name in HIDDEN
    return found


def test_the_commands_are_those_of_the_list_each_with_a_user():
    """A new command needs a recipe, a script or a page; hidden commands are for recipes."""
    kinds = {name: "hidden" if hidden else "visible" for name, (_, hidden) in ALL.items()}
    assert kinds == {name: kind for name, kind, _ in LISTED}
    for name, _, user in (row for row in LISTED if row[2] != "-"):  # one-liners for scripts
        assert f"highrank {name}" in (ROOT / user).read_text(encoding="utf-8"), user


def run(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HIGHRANK, *words], stderr=subprocess.PIPE, text=True, **options)


def test_help_names_every_group_fits_on_a_screen_and_imports_little():
    result = run("--help", stdout=subprocess.PIPE)
    assert result.returncode == 0
    shown = [name for name in COMMANDS if f"\n  {name} " in result.stdout]
    assert shown == [name for name in COMMANDS if name not in HIDDEN]
    assert len(result.stdout.splitlines()) <= 24

    code = (
        "import sys; from typer.testing import CliRunner; from highrank_plugins.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not {"torch", "numpy", "fairseq", "pydantic", "yaml"} & {*loaded}


ALL = found_commands()


@pytest.mark.parametrize("name", ALL)
def test_each_command_has_help_with_an_example_that_parses(name):
    words, (found, _) = name.split(), ALL[name]
    result = highrank(*words, "--help")
    assert result.exit_code == 0
    assert f"Usage: highrank {name}" in result.output
    assert not re.search(r"^ +--.*<(str|int|float|path|list)[ >[]", result.output, re.MULTILINE)
    example = found.help.split("\n\n")[1].replace("\n", " ")
    assert example.startswith("Example: highrank ")
    first = found.help.partition("\n")[0]  # a line in the help of its group
    assert first.endswith(".") and (" " not in name or len(first) <= 64)
    typed = shlex.split(example.partition(" > ")[0])[2:]
    command = typer.main.get_command(app)
    while hasattr(command, "get_command"):
        command = command.get_command(None, typed.pop(0))
    command.make_context("highrank", typed)
    assert command.callback.__name__ == found.callback.__name__


def test_version_and_user_dir_are_printed_from_anywhere_and_by_the_module(tmp_path):
    package = Path(highrank_plugins.__file__).parent.resolve()
    for command in ([HIGHRANK], [sys.executable, "-m", "highrank_plugins.cli"]):
        for option, printed in (
            ("--user-dir", package),
            ("--version", f"highrank_plugins {highrank_plugins.__version__}"),
        ):
            said = subprocess.check_output([*command, option], text=True, cwd=tmp_path)
            assert said == f"{printed}\n"


LISTINGS = [
    "--help",
    "list recipes",
    "published ptb",
    "compare docs/records/multi30k_small/mos-1.json docs/records/multi30k_small/gss-1.json",
]


def test_the_choices_of_a_missing_argument_are_one_line():
    missing = run("list")
    said = "highrank list: Missing argument 'what'. Choose from: archs, heads, recipes"
    assert (missing.returncode, missing.stderr) == (2, f"{said}; see highrank list --help\n")


@pytest.mark.parametrize("line", LISTINGS)
def test_output_without_a_reader_ends_a_command_silently_and_a_full_disk_with_one_line(line):
    reader, writer = os.pipe()
    os.close(reader)
    done = run(*line.split(), stdout=writer, cwd=ROOT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
    with open("/dev/full", "w") as full:
        done = run(*line.split(), stdout=full, cwd=ROOT)
    assert (done.returncode, done.stderr) == (2, "highrank: [Errno 28] No space left on device\n")


TRAIN = ["--", *"fairseq-train data --arch transformer --save-dir save --max-tokens 100".split()]


def test_a_dry_run_prints_every_process_and_starts_none(tmp_path):
    words = ["--processes", "2", "--effective-tokens", "800", "--dry-run"]
    said = highrank("launch", *words, *TRAIN, cwd=tmp_path).stdout
    for rank in (0, 1):
        assert f"--distributed-rank {rank} " in said and "--update-freq 4 " in said
    assert "GLOO_SOCKET_IFNAME=lo\n" in said and "rdzv" not in said  # it is local
    words = ["--nodes", "2", "--processes", "1", "--rendezvous", "node1:29500", "--dry-run"]
    said = highrank("launch", *words, *TRAIN, cwd=tmp_path).stdout
    assert "PET_RDZV_ID=highrank-" in said
    assert "--rdzv-id" not in said  # a secret is no part of a command line
    assert list(tmp_path.iterdir()) == []


def test_a_batch_script_is_written(tmp_path):
    (tmp_path / "modules.sh").write_text("\tmodule load cuda\n")
    words = ["--nodes", "2", "--gpus-per-node", "8", "--slurm", "job.sh", "--sbatch=--time=9"]
    words += ["--account", "us", "--qos", "long", "--mem", "64G", "--prologue", "modules.sh"]
    result = highrank("launch", *words, *TRAIN, cwd=tmp_path)
    assert result.stdout == "sbatch job.sh\n"
    script = (tmp_path / "job.sh").read_text()
    directives, rest = script.split("container=()\n\tmodule load cuda\nset -uo pipefail\n")
    named = ["--account=us", "--qos=long", "--mem=64G", "--time=9"]
    assert directives.endswith("".join(f"#SBATCH {option}\n" for option in named))
    assert '"${container[@]}" \\\n' in rest
    assert (tmp_path / "save" / "logs").is_dir()


# -- tables in a terminal --

TABLES = [
    ["compare", "--runs", "docs/records/ptb_small/mos-1.json"],
    ["compare", *(f"docs/records/ptb_small/{name}.json"
                  for name in ("mos-1", "mos-2", "softmax-1", "softmax-2"))],
    ["bench", "table", "docs/benchmarks/cpu_mos.csv"],
    ["list", "heads"],
]  # fmt: skip


def in_terminal(command: list[str], columns: int) -> list[str]:
    """Return the lines that a terminal of the given width shows, without colour codes."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {n: v for n, v in os.environ.items() if n not in ("COLUMNS", "LINES")}
    run = subprocess.Popen(
        [HIGHRANK, *command], stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, cwd=ROOT,
        env=environment | {"TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    text = b""
    with open(ours, "rb", buffering=0) as terminal, suppress(OSError):  # Linux says so at the end
        while read := terminal.read(1 << 16):
            text += read
    assert run.wait() == 0
    return re.sub("\x1b.*?m", "", text.decode()).replace("\r", "").split("\n")


@pytest.mark.parametrize("command", TABLES, ids=lambda command: " ".join(command[:2]))
def test_a_terminal_shows_tables_without_markdown_and_within_its_width(command):
    columns = 120 if command[0] == "compare" else 80
    lines = in_terminal(command, columns)
    assert max(map(len, lines)) <= columns
    assert not [line for line in lines if line.startswith(("|", "#"))]
    assert len(lines) > 4
