"""A run of 2,000 updates takes no more memory than at their beginning, and leaves nothing."""

import getpass
import os
import signal
import statistics
import time
from pathlib import Path

import pytest

from tests.faults.observed_training import ObservedTraining, binarise, left_of, members, write_text

UPDATES = 2000
INDUCTOR = f"torchinductor_{getpass.getuser()}"
LIMIT = 8 << 20  # bytes of growth from the second fifth to the last


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("launched", [False, True], ids=["one process", "two processes"])
def test_a_long_run_neither_grows_nor_leaves_files(launched, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    shared = set(os.listdir("/dev/shm"))
    data = binarise(write_text(tmp_path), tmp_path)
    training = ObservedTraining(data, tmp_path / "save", launched, tmp_path / "log", stall=300)
    try:
        training.wait_for_updates(50)
        observed = training.rank(1) if launched else training.process.pid
        samples: list[tuple[int, int, int]] = []
        while (update := max(training.updates())) < UPDATES:
            pages = int(Path(f"/proc/{observed}/statm").read_text().split()[1])
            memory = pages * os.sysconf("SC_PAGE_SIZE")
            samples.append((update, memory, len(os.listdir(f"/proc/{observed}/fd"))))
            time.sleep(0.2)
        group = training.process.pid
        training.process.send_signal(signal.SIGTERM)
        code, left_over = training.process.wait(300), left_of(group)
    finally:
        training.end()
    early, late = (
        [sample for sample in samples if first <= sample[0] / UPDATES < first + 0.2]
        for first in (0.2, 0.8)
    )
    before, after = (statistics.median(sample[1] for sample in part) for part in (early, late))
    files = [max(sample[2] for sample in part) for part in (early, late)]
    print(f"\n{before / 2**20:.1f} to {after / 2**20:.1f} MiB, open files {files}")
    assert after - before < LIMIT
    assert files[1] <= files[0]
    assert code == 75
    assert left_over == 0 and not members(group)
    assert set(os.listdir(temporary)) <= {INDUCTOR}
    left = {name for name in set(os.listdir("/dev/shm")) - shared if f"_{group}_" in name}
    assert not left
    suffixes = {path.suffix for path in (tmp_path / "save").iterdir() if path.is_file()}
    assert suffixes <= {".pt", ".lock", ".jsonl"}
