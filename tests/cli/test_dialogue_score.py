"""`highrank evaluate dialogue-score`: files in, scores out, and what is refused."""

import json

import pytest

from tests.cli.test_highrank import called

GENERATED = [
    "S-1\t<other> x",
    "D-1\t-0.1\tno",
    "D-1\t-0.2\toh no",
    "D-0\t-0.1\tyeah",
    "D-0\t-1\toh",
]
SCORED = ["P-0\t-1.0 -3.0", "P-1\t-2.0 -2.0"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "generated").write_text("\n".join(GENERATED) + "\n")
    (tmp_path / "scored").write_text("\n".join(SCORED) + "\n")
    (tmp_path / "references").write_text("yeah\tright\nno\n")
    (tmp_path / "contexts").write_text("<self> how is it\n<other> x\n")
    (tmp_path / "responses").write_text("yeah\nno\n")
    return tmp_path


def score(folder, *words):
    given = ["generated", "references", "--output", "scores.json", *words]
    return called("evaluate", "dialogue-score", *given, cwd=folder)


def test_the_command_scores_responses(folder):
    result = score(folder, "--scored", "scored", "--responses", "responses")
    assert result.returncode == 0, result.stderr
    scores = json.loads((folder / "scores.json").read_text())
    assert next(iter(scores)) == "test_perplexity"
    assert scores["test_perplexity"] == {"value": 4.0, "signature": "tokens:4"}
    assert scores["bleu1_recall"]["value"] == 0.75  # "right" is nobody's response


def test_scores_are_printed_without_an_output(folder):
    result = called("evaluate", "dialogue-score", "generated", "references", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "bleu1_recall 0.75 " in result.stdout and "perplexity" not in result.stdout


def test_bad_hypotheses_are_refused(folder):
    result = score(folder, "--scored", "scored")
    assert result.returncode == 2
    assert "--scored and --responses belong together" in result.stderr
    with (folder / "references").open("a") as file:
        file.write("one more\n")
    result = score(folder)
    assert result.returncode == 2
    assert "2 hypotheses for 3 inputs; the first input without one is line 3" in result.stderr
