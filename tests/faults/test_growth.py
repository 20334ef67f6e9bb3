"""A run of 2,000 updates takes no more memory than at their beginning, and leaves nothing."""

import getpass
import os
import re
import signal
import statistics
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

import highrank_plugins
from highrank_plugins.common.processes import end_with_parent, python
from tests.recipes.running import left_of
from tests.training.launch.test_trainings import process_of
from tests.training.launch.trainings import command

UPDATES = 2000


SAVES = "--num-workers 1 --save-interval-updates 25 --keep-interval-updates 1".split()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("launched", [False, True], ids=["one process", "two processes"])
def test_a_long_run_neither_grows_nor_leaves_files(launched, mt_data, tmp_path, monkeypatch):
    temporary, save_dir, log = (tmp_path / name for name in ("temporary", "save", "log"))
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    shared = set(os.listdir("/dev/shm"))
    words = [*command(mt_data, save_dir, 100 * UPDATES), *SAVES]
    line = ["highrank_plugins.cli", "launch", "--processes", "2", "--", *words]
    if not launched:
        line = ["fairseq_cli.train", *words[1:], "--cpu", "--user-dir"]
        line += highrank_plugins.__path__

    def update() -> int:
        assert training.poll() is None, log.read_text()[-3000:]
        return int(["0", *re.findall(r"num_updates=(\d+),", log.read_text())][-1])

    with log.open("wb") as file:
        training = subprocess.Popen(
            python("-m", *line), stdout=file, stderr=file, start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            preexec_fn=end_with_parent,
        )  # fmt: skip
    group = training.pid
    try:
        while update() < UPDATES // 40:
            time.sleep(0.2)
        observed = process_of(1, save_dir) if launched else group
        samples: list[tuple[int, int, int]] = []
        while (done := update()) < UPDATES:
            pages = int(Path(f"/proc/{observed}/statm").read_text().split()[1])
            memory = pages * os.sysconf("SC_PAGE_SIZE")
            samples.append((done, memory, len(os.listdir(f"/proc/{observed}/fd"))))
            time.sleep(0.2)
        training.send_signal(signal.SIGTERM)
        code, left_over = training.wait(300), left_of(group)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        training.wait()
    early, late = (
        [sample for sample in samples if first <= sample[0] / UPDATES < first + 0.2]
        for first in (0.2, 0.8)
    )
    before, after = (statistics.median(sample[1] for sample in part) for part in (early, late))
    files = [max(sample[2] for sample in part) for part in (early, late)]
    print(f"\n{before / 2**20:.1f} to {after / 2**20:.1f} MiB, open files {files}")
    assert after - before < 8 << 20  # bytes, from the second fifth to the last
    assert files[1] <= files[0]
    assert code == 75
    assert not left_over
    assert set(os.listdir(temporary)) <= {f"torchinductor_{getpass.getuser()}"}
    left = {name for name in set(os.listdir("/dev/shm")) - shared if f"_{group}_" in name}
    assert not left
    suffixes = {path.suffix for path in (tmp_path / "save").iterdir() if path.is_file()}
    assert suffixes <= {".pt", ".lock", ".jsonl"}
