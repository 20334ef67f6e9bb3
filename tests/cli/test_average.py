"""`highrank model average`: options that cannot be meant."""

import pytest

from tests.cli.test_highrank import called


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output", "."], "--output . is a directory: name the file to write"),
        (
            ["--output", "a.pt", "--from-update", "20", "--to-update", "10"],
            "--from-update 20 is above --to-update 10",
        ),
        (
            ["--output", "a.pt", "--last", "2", "--best", "2"],
            "--last and --best exclude each other",
        ),
    ],
)
def test_an_invalid_call_is_refused_before_anything_is_read(tmp_path, words, message):
    result = called("model", "average", "train", *words, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.strip() == f"highrank: {message}"
    assert list(tmp_path.iterdir()) == []


def test_no_checkpoint_of_the_run_is_overwritten(tmp_path):
    last = tmp_path / "train" / "checkpoint_last.pt"
    last.parent.mkdir()
    last.write_bytes(b"kept")
    result = called("model", "average", "train", "--output", last, cwd=tmp_path)
    assert result.returncode == 2
    assert f"--output {last} is a file of the training run: name another" in result.stderr
    assert last.read_bytes() == b"kept"
