"""fairseq's real scripts: the repository's folder as --user-dir, and errors as a user sees them."""

import subprocess
import sys
from pathlib import Path

from tests.fairseq_cli import REPOSITORY, run
from tests.trainings import NARROW, OUR_LOSS, TRANSLATION, last

SCRIPTS = Path(sys.executable).parent


def script(name, *words):
    """Run `fairseq-<name>` from the repository's root."""
    line = [SCRIPTS / f"fairseq-{name}", *words, "--user-dir", "highrank_plugins"]
    return subprocess.run(
        [str(word) for word in line], cwd=REPOSITORY, capture_output=True, text=True, timeout=200
    )


def test_a_trained_model_generates(mt_data, tmp_path):
    arch = ["--arch", "transformer_mixtape_tiny", "--max-update", 2]
    trained = script(
        "train", mt_data, "--save-dir", tmp_path, *arch, *TRANSLATION, *NARROW, *OUR_LOSS
    )
    assert trained.returncode == 0, trained.stderr
    words = ["--path", last(tmp_path), "--batch-size", 8, "--max-len-b", 5]
    generated = script("generate", mt_data, *words)
    assert generated.returncode == 0, generated.stderr
    assert sum(line.startswith("H-") for line in generated.stdout.splitlines()) == 20


def test_a_model_trains_under_its_own_name(mt_data, tmp_path):
    model = ["--arch", "transformer_highrank", "--head", "moc"]
    words = [*model, *TRANSLATION, *NARROW, *OUR_LOSS, "--save-dir", tmp_path]
    run("train", mt_data, *words, "--max-update", 2)
    resumed = run("train", mt_data, *words, "--max-update", 3)
    assert "Loaded checkpoint" in resumed.output
    done = run("generate", mt_data, "--path", last(tmp_path), "--batch-size", 8, "--max-len-b", 5)
    assert len(done.lines("H-")) == 20
