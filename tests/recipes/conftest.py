"""Run the toy recipe."""

import os
import subprocess

import pytest

from tests.recipes.toy import TOY


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "run.sh").write_text(TOY)

    def toy(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "run.sh", *arguments],
            cwd=tmp_path,
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )

    toy.run = tmp_path / "run" / "here"
    return toy
