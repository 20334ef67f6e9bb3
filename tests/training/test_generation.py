"""Hypotheses of several processes are those of one, in the order of the input."""

import subprocess
import sys
from pathlib import Path

import pytest

from highrank_plugins.training.launch.supervise import generated as generate
from tests.trainings import last, train

HIGHRANK = Path(sys.executable).parent / "highrank"
USER_DIR = str(Path(__file__).parents[2] / "highrank_plugins")


@pytest.mark.long
def test_three_processes_for_two_batches_print_what_one_prints_sorted(mt_data, tmp_path):
    train(mt_data, tmp_path, "transformer_mixtape_tiny", 10)
    command = [
        *("fairseq-generate", str(mt_data), "--path", str(last(tmp_path)), "--user-dir", USER_DIR),
        *("--beam", "3", "--nbest", "2", "--batch-size", "10", "--max-len-b", "10"),
    ]
    one = generate(command, 1)
    file = tmp_path / "out.txt"
    words = [HIGHRANK, "evaluate", "generate", "--processes", "3", "--output", file, "--", *command]
    subprocess.run(words, check=True, capture_output=True)
    assert file.read_bytes() == b"".join(one)
    numbers = [int(line[2:].split(b"\t")[0]) for line in one if line.startswith(b"D-")]
    assert numbers == [number for number in range(20) for _ in range(2)]
    short = ["--max-source-positions", "10", "--skip-invalid-size-inputs-valid-test"]
    with pytest.raises(ValueError, match=r"fairseq-generate \d of 2 failed: exit 2"):
        generate([*command, *short], 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fairseq-generat"], "did you mean 'fairseq-generate'"),
        (["fairseq-generate", "--sampling"], "use one"),
        (["fairseq-generate", "--results-path=x"], "--results-path: redirect the output"),
        (["fairseq-generate", "--num-shards", "2"], "ignores it"),
        (["fairseq-generate", "--path", "missing.pt"], r"--path missing\.pt: no such file"),
    ],
)
def test_commands_that_several_processes_cannot_share_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        generate(words, 2)
