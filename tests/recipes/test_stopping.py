"""A recipe that is told to stop ends with all of its programs, and resumes."""

import os
import signal
import subprocess
import time

import pytest

from tests.recipes.conftest import TOY
from tests.recipes.running import (
    RECIPES,
    SIGNALS,
    begin,
    kill,
    left_of,
    multi30k,
    stages_done,
    wait_for,
)

# a program that saves when it is told to stop, or does not care
SAVES = "trap 'echo saved; exit 75' TERM HUP; touch begun; while :; do sleep 0.1; done"
DEAF = "trap '' TERM; touch begun; while :; do sleep 0.1; done"


@pytest.fixture
def started(toy, tmp_path):
    """Start a toy recipe whose first stage runs a program, and wait until that has begun."""

    def started(program: str) -> subprocess.Popen[str]:
        (tmp_path / "program.sh").write_text(f"cd {tmp_path}\n{program}\n")
        first = f'first() {{ bash "{tmp_path}/program.sh"; echo never; }}\n'
        lines = [first if line.startswith("first()") else line for line in TOY.splitlines(True)]
        toy.script.write_text("".join(lines))
        process = begin(["bash", "run.sh"], tmp_path)
        wait_for((tmp_path / "begun").exists, process)
        return process

    return started


def ended(process: subprocess.Popen[str], number: int) -> str:
    """Return what a recipe said that ended with all of its programs."""
    out, err = process.communicate(timeout=20)
    assert process.returncode == (-signal.SIGINT if number == signal.SIGINT else 75), err
    assert f"stage 0 (first) was stopped by {signal.Signals(number).name}" in err
    assert "the same command resumes it" in err
    assert "never" not in out + err
    assert left_of(process.pid) == []
    return err


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("to_group", [False, True])
def test_a_program_saves_before_it_ends_and_the_recipe_is_resumed(started, toy, number, to_group):
    process = started(SAVES)
    if to_group and number != signal.SIGINT:  # bash ignores that of a terminal in the background
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    said = ended(process, number)
    assert "saved" in (toy.run / "log" / "0-first.log").read_text() and "saved" in said
    toy.script.write_text(TOY)
    assert stages_done(toy()) == [0, 1, 2]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_second_signal_kills_programs_that_ignore_the_first(started, number):
    process = started(DEAF)
    process.send_signal(number)
    time.sleep(0.3)
    process.send_signal(number)  # the same request
    time.sleep(3)
    assert process.poll() is None
    process.send_signal(number)
    assert "again: killing the stage" in ended(process, number)


def test_a_recipe_ends_at_once_between_stages_and_a_loop_over_recipes_at_ctrl_c(
    started, toy, tmp_path
):
    toy.script.write_text(TOY.replace("run_stage 0", "touch $OLDPWD/begun; sleep 2\nrun_stage 0"))
    process = begin(["bash", "run.sh"], tmp_path)
    wait_for((tmp_path / "begun").exists, process)
    process.terminate()
    assert "stopped by SIGTERM; the same command resumes it" in process.communicate(timeout=20)[1]
    assert process.returncode == 75
    (tmp_path / "begun").unlink()
    kill(started(SAVES))
    (tmp_path / "begun").unlink()
    loop = "for i in 1 2; do bash run.sh --name other$i; done"
    process = begin(["bash", "-c", loop], tmp_path)
    wait_for((tmp_path / "begun").exists, process)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert said.count("stage 0 first: write") == 1
    assert process.returncode == -signal.SIGINT and left_of(process.pid) == []


@pytest.mark.parametrize("number", SIGNALS)
def test_measuring_ends_at_once_and_leaves_nothing(tmp_path, number):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    code = f'write_command() {{ echo "touch {tmp_path}/begun; sleep 60" >"$1"; }}\n'
    code += f"asks_for() {{ false; }}; run_dir={tmp_path}; say_minutes data; echo never\n"
    lib = RECIPES / "lib"
    lines = [f"source {lib}/{name}.sh" for name in ("translation", "own_text")]
    (tmp_path / "run.sh").write_text("\n".join([*lines, code]))
    process = begin(["bash", str(tmp_path / "run.sh")], tmp_path, TMPDIR=str(scratch))
    wait_for((tmp_path / "begun").exists, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == (-signal.SIGINT if number == signal.SIGINT else 75), err
    assert f"measuring was stopped by {signal.Signals(number).name}" in err and "never" not in out
    assert left_of(process.pid) == [] and not [*scratch.iterdir()]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("launch", ["", pytest.param("--processes 2", marks=pytest.mark.long)])
def test_a_run_saves_and_is_resumed(tmp_path, launch):
    words = ["--stop-stage", 3, f"--launch={launch}"]
    command = multi30k(tmp_path, *words, max_epoch=0, max_update=100_000)
    log = tmp_path / "exp" / "multi30k_en_de" / "a" / "train" / "train.log"
    process = begin(command)
    wait_for(lambda: log.exists() and '"num_updates": "4"' in log.read_text(), process)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 75 and "the same command resumes it" in said, said[-3000:]
    assert left_of(process.pid) == []
    assert "stopping after update" in log.read_text()
    assert (log.parent / "checkpoint_last.pt").exists()
    ended_at = len(log.read_text())
    process = begin(command)
    wait_for(lambda: "Loaded checkpoint" in log.read_text()[ended_at:], process)
    process.terminate()
    time.sleep(2)
    process.terminate()
    process.communicate(timeout=60)
    assert left_of(process.pid) == []
