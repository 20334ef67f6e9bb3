"""Two processes train what one trains; stopped or killed, they end in time and are named."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import highrank_plugins
from highrank_plugins.common.stop_request import REQUEUE
from highrank_plugins.training.launch.supervise import generated
from tests.free_port import free_port
from tests.training.launch.trainings import UPDATES, command, one_process
from tests.trainings import last, parameters, same, train

HIGHRANK = Path(sys.executable).parent / "highrank"
OURS = str(Path(highrank_plugins.__file__).parent)
STALL_SECONDS = 6
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("launched")]


@pytest.fixture(scope="module")
def unbroken(mt_data, tmp_path_factory):
    return parameters(last(one_process(mt_data, tmp_path_factory.mktemp("one"))))


def start(
    data: Path, save_dir: Path, *options: object, updates: int = UPDATES
) -> subprocess.Popen[str]:
    words = [HIGHRANK, "launch", *options, "--", *command(data, save_dir, updates)]
    return subprocess.Popen(
        [str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # more threads sum in another order
    )  # fmt: skip


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    output = process.communicate()[0]
    assert process.returncode == code, output[-4000:]
    return output


def wait_for_update(log: Path, number: int, *processes: subprocess.Popen[str]) -> None:
    while not (log.exists() and f"num_updates={number}," in log.read_text()):
        assert all(p.poll() is None for p in processes), processes[0].communicate()[0][-4000:]
        time.sleep(0.05)


def process_of(rank: int, save_dir: Path, variable: str = "RANK") -> int:
    """Return the process that trains as this rank, which is in a variable of its environment."""
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = environ.read_bytes().split(b"\0")
            words = environ.with_name("cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended, or is another user's
        if f"{variable}={rank}".encode() in variables and str(save_dir).encode() in words:
            return int(environ.parent.name)
    raise AssertionError(f"rank {rank} does not run")


@pytest.mark.long
def test_a_stopped_run_saves_and_resumes_with_the_same_result(mt_data, unbroken, tmp_path):
    first = start(mt_data, tmp_path / "two", "--processes", 2)
    wait_for_update(tmp_path / "two" / "logs" / "rank0.log", 5, first)
    began = time.monotonic()
    first.send_signal(signal.SIGTERM)
    output = finish(first, REQUEUE)
    assert time.monotonic() - began < 60
    assert "start it again" in output
    stopped = parameters(last(tmp_path / "two"))
    assert not same(stopped, unbroken)
    output = finish(start(mt_data, tmp_path / "two", "--processes", 2))
    assert "training on 2 devices" in output
    assert "Loaded checkpoint" in output
    assert same(parameters(last(tmp_path / "two")), unbroken)
    assert (tmp_path / "two" / "logs" / "rank1.log").read_text().count("+ fairseq-train") == 2


@pytest.mark.long
def test_two_nodes_resume_from_the_last_checkpoint_after_a_process_was_killed(
    mt_data, unbroken, tmp_path
):
    meeting = ["--nodes", 2, "--processes", 1, "--rendezvous", f"127.0.0.1:{free_port()}"]
    nodes = [start(mt_data, tmp_path / "two", *meeting) for _ in range(2)]
    wait_for_update(tmp_path / "two" / "logs" / "rank0.log", 7, *nodes)
    os.kill(process_of(1, tmp_path / "two"), signal.SIGKILL)
    outputs = [finish(node) for node in nodes]
    assert any("Loaded checkpoint" in output for output in outputs)
    assert any(f"num_updates={UPDATES}," in output for output in outputs)
    assert same(parameters(last(tmp_path / "two")), unbroken)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_lost_process_ends_the_other(mt_data, tmp_path, number):
    folder = tmp_path / "two"
    options = ["--processes", 2, "--stall-timeout", STALL_SECONDS]
    training = start(mt_data, folder, *options, updates=100_000)
    wait_for_update(folder / "logs" / "rank0.log", 5, training)
    ranks = [process_of(rank, folder) for rank in (0, 1)]
    began = time.monotonic()
    os.kill(ranks[1], number)
    output = training.communicate(timeout=STALL_SECONDS + 60)[0]
    took = time.monotonic() - began
    assert training.returncode not in (0, 75)
    assert took < STALL_SECONDS + 30
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    last_line = output.splitlines()[-1]
    assert "start the same command again: it resumes from the last checkpoint" in last_line
    if number == signal.SIGKILL:
        assert "rank 1 was killed by signal 9 (SIGKILL): is the machine out of memory?" in output
        return
    assert training.returncode == 128 + signal.SIGABRT
    found = re.search(
        r"rank 0 \(process (\d+)\) has made no progress for (\d+) s, \w+ after update \d+: a "
        r"signal has stopped rank 1 \(process (\d+)\) \(SIGSTOP or SIGTSTP\); the stacks are",
        last_line,
    )  # fmt: skip
    assert found and [int(found[1]), int(found[3])] == ranks and int(found[2]) >= STALL_SECONDS
    for rank in (0, 1):
        log = (folder / "logs" / f"rank{rank}.log").read_text(errors="replace")
        assert re.search(r"File .*/fairseq(_cli)?/.*\.py., line \d+ in \w+", log), rank


def sockets_of(processes: list[int]) -> list[str]:
    """Return local addresses where a process listens, in the kernel's hexadecimal form."""
    inodes = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            try:
                inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in inodes]


def test_a_run_on_one_machine_is_not_reachable_from_outside(mt_data, tmp_path):
    training = start(mt_data, tmp_path / "two", "--processes", 2, updates=100_000)
    try:
        wait_for_update(tmp_path / "two" / "logs" / "rank0.log", 2, training)
        children = Path(f"/proc/{training.pid}/task/{training.pid}/children").read_text().split()
        listening = sockets_of([training.pid, *map(int, children)])
        lines = b"".join(Path(f"/proc/{child}/cmdline").read_bytes() for child in children)
        folders = {Path(found.decode()).parent for found in re.findall(rb"file://([^\0]+)", lines)}
        assert len(children) == 2
        assert all(address.startswith("0100007F:") for address in listening), listening
        assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700]
    finally:
        training.send_signal(signal.SIGTERM)
        finish(training, REQUEUE)
    assert not any(folder.exists() for folder in folders)


def test_two_processes_end_with_the_parameters_of_one(mt_data, unbroken, tmp_path):
    """A second process with other parameters would have other gradients."""
    finish(start(mt_data, tmp_path / "two", "--processes", 2))
    assert same(parameters(last(tmp_path / "two")), unbroken)


# -- hypotheses of several processes --


@pytest.mark.long
def test_three_processes_for_two_batches_print_what_one_prints_sorted(mt_data, tmp_path):
    train(mt_data, tmp_path, "transformer_mixtape_tiny", 10)
    command = [
        *("fairseq-generate", str(mt_data), "--path", str(last(tmp_path)), "--user-dir", OURS),
        *("--beam", "3", "--nbest", "2", "--batch-size", "10", "--max-len-b", "10"),
    ]
    one = generated(command, 1)
    file = tmp_path / "out.txt"
    words = [HIGHRANK, "evaluate", "generate", "--processes", "3", "--output", file, "--", *command]
    subprocess.run(words, check=True, capture_output=True)
    assert file.read_bytes() == b"".join(one)
    numbers = [int(line[2:].split(b"\t")[0]) for line in one if line.startswith(b"D-")]
    assert numbers == [number for number in range(20) for _ in range(2)]
    short = ["--max-source-positions", "10", "--skip-invalid-size-inputs-valid-test"]
    with pytest.raises(ValueError, match=r"fairseq-generate \d of 2 failed: exit 2"):
        generated([*command, *short], 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fairseq-generat"], "did you mean 'fairseq-generate'"),
        (["fairseq-generate", "--sampling"], "use one"),
        (["fairseq-generate", "--results-path=x"], "--results-path: redirect the output"),
        (["fairseq-generate", "--path", "missing.pt"], r"--path missing\.pt: no such file"),
    ],
)
def test_commands_that_several_processes_cannot_share_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        generated(words, 2)
