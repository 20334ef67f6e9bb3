"""A recipe that is told to stop ends with all of its programs, and resumes."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.recipes.running import REPOSITORY, overrides, raw_text, recipe
from tests.recipes.toy import TOY, done_stages

SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
# a program that saves when it is told to stop, or does not care
SAVES = "trap 'echo saved; exit 75' TERM HUP; touch begun; while :; do sleep 0.1; done"
DEAF = "trap '' TERM; touch begun; while :; do sleep 0.1; done"


def start(words, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a recipe in a group of its own, with the signals of a terminal."""

    def listen() -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    return subprocess.Popen(
        words, cwd=folder, env=os.environ | environment, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=listen,
    )  # fmt: skip


def wait_for(path: Path, process: subprocess.Popen[str], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end and process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.05)


def remaining_processes(leader: int, seconds: float = 10) -> list[str]:
    """Return the names of the processes of a group that still run after some seconds."""
    end = time.monotonic() + seconds
    while (names := group(leader)) and time.monotonic() < end:
        time.sleep(0.1)  # workers that load data look for their parent every 5 seconds
    return names


def group(leader: int) -> list[str]:
    names = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text(errors="replace").rpartition(")")
        except OSError:
            continue
        if rest.split()[2] == str(leader) and rest.split()[0] != "Z":
            names.append(name)
    return names


@pytest.fixture
def begin(tmp_path):
    """Start a toy recipe whose first stage runs a program, and wait until that has begun."""

    def begin(program: str) -> subprocess.Popen[str]:
        (tmp_path / "program.sh").write_text(f"cd {tmp_path}\n{program}\n")
        first = f'first() {{ bash "{tmp_path}/program.sh"; echo never; }}\n'
        lines = [first if line.startswith("first()") else line for line in TOY.splitlines(True)]
        (tmp_path / "run.sh").write_text("".join(lines))
        process = start(["bash", "run.sh"], tmp_path)
        wait_for(tmp_path / "begun", process)
        return process

    return begin


def ended(process: subprocess.Popen[str], number: int) -> str:
    out, err = process.communicate(timeout=20)
    assert process.returncode == (-signal.SIGINT if number == signal.SIGINT else 75), err
    assert f"stage 0 (first) was stopped by {signal.Signals(number).name}" in err
    assert "the same command resumes it" in err
    assert "never" not in out + err
    assert remaining_processes(process.pid) == []
    return err


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("to_group", [False, True])
def test_a_program_saves_before_it_ends(begin, number, to_group, tmp_path):
    process = begin(SAVES)
    if to_group and number != signal.SIGINT:  # bash ignores that of a terminal in the background
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    said = ended(process, number)
    log = (tmp_path / "run" / "here" / "log" / "0-first.log").read_text()
    assert "saved" in log and "saved" in said


@pytest.mark.parametrize("number", SIGNALS)
def test_the_second_signal_kills_programs_that_ignore_the_first(begin, number):
    process = begin(DEAF)
    process.send_signal(number)
    time.sleep(0.3)
    process.send_signal(number)  # the same request
    time.sleep(3)
    assert process.poll() is None
    process.send_signal(number)
    assert "again: killing the stage" in ended(process, number)


def test_a_recipe_ends_at_once_between_stages(tmp_path):
    script = TOY.replace("run_stage 0", "touch begun; sleep 2\nrun_stage 0")
    (tmp_path / "run.sh").write_text(script.replace("touch begun", f"touch {tmp_path}/begun"))
    process = start(["bash", "run.sh"], tmp_path)
    wait_for(tmp_path / "begun", process)
    process.terminate()
    assert "stopped by SIGTERM; the same command resumes it" in process.communicate(timeout=20)[1]
    assert process.returncode == 75


def test_a_stopped_recipe_is_resumed(begin, tmp_path):
    process = begin(SAVES)
    process.terminate()
    ended(process, signal.SIGTERM)
    (tmp_path / "run.sh").write_text(TOY)
    again = subprocess.run(["bash", "run.sh"], cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0 and done_stages(again) == [0, 1, 2]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("launch", ["", pytest.param("--processes 2", marks=pytest.mark.long)])
def test_a_run_saves_and_is_resumed(tmp_path, launch):
    words = ["--data", raw_text(tmp_path / "data"), "--text", "any", "--exp-dir", tmp_path / "exp"]
    words += ["--conf", "softmax", "--name", "a", "--stop-stage", 3, f"--launch={launch}"]
    command = recipe("multi30k_en_de", *words, settings=overrides(max_epoch=0, max_update=100000))
    process = start(command, REPOSITORY)
    log = tmp_path / "exp" / "multi30k_en_de" / "a" / "train" / "train.log"
    wait_for(log, process, 300)
    while '"num_updates": "4"' not in log.read_text():
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.1)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 75 and "the same command resumes it" in said, said[-3000:]
    assert remaining_processes(process.pid) == []
    assert "stopping after update" in log.read_text()
    assert (log.parent / "checkpoint_last.pt").exists()
    ended_at = len(log.read_text())
    process = start(command, REPOSITORY)
    while "Loaded checkpoint" not in log.read_text()[ended_at:]:
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.1)
    process.terminate()
    time.sleep(2)
    process.terminate()
    process.communicate(timeout=60)
    assert remaining_processes(process.pid) == []


def test_a_loop_over_recipes_ends_at_ctrl_c(begin, tmp_path):
    written = begin(SAVES)
    os.killpg(written.pid, signal.SIGKILL)
    written.communicate()
    (tmp_path / "begun").unlink()
    loop = "for i in 1 2; do bash run.sh --name other$i; done"
    process = start(["bash", "-c", loop], tmp_path)
    wait_for(tmp_path / "begun", process)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert said.count("stage 0 first: write") == 1
    assert process.returncode == -signal.SIGINT
    assert remaining_processes(process.pid) == []
