"""The last lines of recipes: a file that is no record is named, whatever reads it."""

import re

import pytest
from typer.testing import CliRunner

from highrank_plugins.cli import build_app


def invoke(*words):
    words = [str(word) for word in words]
    return CliRunner().invoke(build_app(words), words)


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"metrics": []}', '{"metrics": {"a": 1}}'])
@pytest.mark.parametrize("command", ["lm-summary", "summary", "dialogue-summary"])
def test_no_record(command, text, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(text)
    texts = [] if command == "lm-summary" else [path] * 3
    done = invoke(command, path, *texts)
    assert done.exit_code == 2 and re.search(
        "results.json: no (record of a run|bleu1)", done.output
    )


def test_no_record_beside_published_scores(tmp_path):
    path = tmp_path / "results.json"
    path.write_text("{}")
    done = invoke("published", "ptb", "--results", path)
    assert done.exit_code == 2 and "results.json: no record of a run" in done.output
