"""Run the toy recipe."""

import os
import subprocess

import pytest

from tests.recipes.toy import TOY


@pytest.fixture
def toy(tmp_path):
    """Return a function that runs it; it must end with exit code 0, or another that is given."""
    (tmp_path / "run.sh").write_text(TOY)

    def toy(*words: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["bash", "run.sh", *words], cwd=tmp_path, env=os.environ | environment,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done

    def refused(message: str, *words: str, **environment: str) -> str:
        said = toy(*words, code=2, **environment).stderr
        assert message in said
        return said

    toy.refused, toy.run, toy.script = refused, tmp_path / "run" / "here", tmp_path / "run.sh"
    return toy
