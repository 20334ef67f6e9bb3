"""Disturb real training runs, and report how they end."""

import os
import random
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import highrank_plugins
from highrank_plugins.common.processes import end_with_parent, python

OPTIONS = """--source-lang en --target-lang de --arch transformer_softmax_tiny --optimizer adam
    --lr 0.005 --max-tokens 500 --no-progress-bar --no-epoch-checkpoints
    --criterion highrank_cross_entropy --encoder-embed-dim 32 --encoder-ffn-embed-dim 64
    --encoder-layers 1 --decoder-embed-dim 32 --decoder-ffn-embed-dim 64 --decoder-layers 1
    --encoder-attention-heads 2 --decoder-attention-heads 2 --log-interval 1
    --save-interval-updates 25 --keep-interval-updates 1 --max-update 1000000""".split()
_WORDS = "the a cat dog house tree sees eats likes big small red in on under".split()


def write_text(folder: Path) -> Path:
    """Write sentence pairs en-de of a few words for a tiny training run."""
    draw = random.Random(1)
    for name, size in {"train": 200, "valid": 20, "test": 20}.items():
        lines = [draw.choices(_WORDS, k=draw.randint(2, 9)) for _ in range(size)]
        for language, order in {"en": 1, "de": -1}.items():
            text = "".join(" ".join(words[::order]) + "\n" for words in lines)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return folder


def binarise(text: Path, folder: Path) -> Path:
    """Binarise `text/{train,valid,test}.{en,de}`, and return the data's folder."""
    data = folder / "data-bin"
    prefixes = [f"--{part}pref={text / part}" for part in ("train", "valid", "test")]
    words = ["fairseq_cli.preprocess", *prefixes, "--source-lang", "en", "--target-lang", "de"]
    with (folder / "preprocess.log").open("wb") as log:
        line = python("-m", *words, "--destdir", str(data))
        subprocess.run(line, check=True, stdout=log, stderr=log)
    return data


class ObservedTraining:
    """Train in a process group of its own, whose output goes to a file.

    Args:
        launched: By two processes through `highrank launch`, otherwise by `fairseq-train`.
        stall: --stall-timeout in seconds.
    """

    def __init__(self, data: Path, save_dir: Path, launched: bool, log: Path, stall: int) -> None:
        words = [str(data), *OPTIONS, "--save-dir", str(save_dir)]
        if launched:
            line = ["highrank_plugins.cli", "launch", "--processes", "2"]
            line += ["--stall-timeout", str(stall), "--", "fairseq-train", *words]
        else:
            user_dir = highrank_plugins.__path__[0]
            line = ["fairseq_cli.train", *words, "--cpu", "--user-dir", user_dir]
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                python("-m", *line), stdout=file, stderr=file, start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
                preexec_fn=end_with_parent,
            )  # fmt: skip

    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def updates(self) -> list[int]:
        return [int(number) for number in re.findall(r"num_updates=(\d+),", self.output())]

    def wait_for_updates(self, number: int) -> None:
        while len(self.updates()) < number:
            assert self.process.poll() is None, self.output()[-3000:]
            time.sleep(0.05)

    def rank(self, number: int) -> int:
        """Return the process that trains as a rank."""
        wanted = f"RANK={number}".encode()
        parent = self.process.pid  # skip a rank's own workers, whose environment is equal
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for process in map(int, children):
            environ = Path(f"/proc/{process}/environ")
            if wanted in environ.read_bytes().split(b"\0"):
                return process
        raise RuntimeError(f"rank {number} is not running")

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def members(group: int) -> list[int]:
    """Return the processes of a group that run, those that load data among them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # the process has just ended
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def left_of(group: int, seconds: float = 10) -> int:
    """Return how many processes of a group still run after some seconds."""
    end = time.monotonic() + seconds
    while (left := members(group)) and time.monotonic() < end:
        time.sleep(0.1)  # workers that load data look for their parent every 5 seconds
    return len(left)
