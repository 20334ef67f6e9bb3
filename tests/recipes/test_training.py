"""recipes/lib/training.sh: what a training depends on, and the room that it needs."""

import subprocess
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[2] / "recipes" / "lib" / "training.sh"


def call(tmp_path, script: str) -> str:
    """What bash prints with the library's functions."""
    (tmp_path / "run.sh").write_text(f'source "{LIBRARY}"\n{script}\n')
    command = ["bash", str(tmp_path / "run.sh")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("highrank launch --nodes 2 --gpus-per-node 4", 8),
        ("highrank launch --nodes=1 --gpus-per-node=8", 8),
        ("highrank launch --gpus-per-node 4 --gpus-per-node 8", 8),  # the last one is taken
        ("highrank launch --processes 3", 3),
    ],
)
def test_a_training_depends_on_the_number_of_processes(tmp_path, words, count):
    assert call(tmp_path, f"process_count '{words}'") == f"processes {count}"


@pytest.mark.parametrize(
    ("there", "needed"),
    [
        ({}, 1000),
        ({"checkpoint_last.pt": 300}, 700),
        ({"a.pt": 600, "checkpoint_last.pt": 300}, 300),
    ],
)
def test_the_disk_must_hold_the_checkpoints_to_come(tmp_path, there, needed):
    out = tmp_path / "train"
    out.mkdir()
    for name, size in there.items():
        (out / name).write_bytes(bytes(size))
    directory = out.stat().st_size  # du counts it
    script = f"""highrank() {{ echo {1000 + directory if there else 1000}; }}
config=c out={out}
checkpoint_space train data"""
    assert call(tmp_path, script) == str(needed)
