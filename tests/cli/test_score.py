"""`highrank evaluate score` and `published`: which scores, and what is refused."""

import json

import pytest

from tests.cli import highrank

SENTENCES = ["Die Nord-Süd-Linie fährt heute nicht.", "Er liest zehn Bücher im Jahr."]


@pytest.fixture
def folder(tmp_path):
    rows = [f"D-{number}\t-0.1\t{line}\n" for number, line in enumerate(SENTENCES)]
    (tmp_path / "generated").write_text("".join(reversed(rows)))
    (tmp_path / "reference").write_text("".join(f"{line}\n" for line in SENTENCES))
    return tmp_path


def score(folder, *words):
    given = ["generated", "reference", "--output", "scores.json", "--hypotheses", "test.de"]
    return highrank("evaluate", "score", *given, *words, cwd=folder)


def test_two_files_are_enough(folder):
    (folder / "plain").write_text("Die Linie.\nEr liest zehn Bücher im Jahr.\n")
    before = set(folder.iterdir())
    result = highrank("evaluate", "score", "generated", "reference", cwd=folder)
    assert result.stdout.startswith("sacrebleu 100.0 nrefs:1|case:mixed")
    result = highrank("evaluate", "score", "plain", "reference", cwd=folder)
    assert 0 < float(result.stdout.split()[1]) < 100 and "\nchrf " in result.stdout
    assert set(folder.iterdir()) == before


def test_a_log_of_eval_lm_has_perplexities_of_the_raw_text(tmp_path):
    (tmp_path / "log").write_text(
        "Evaluated 12 tokens in 1s\nLoss (base 2): 2.5, Perplexity: 5.66\n"
    )
    (tmp_path / "text").write_text("a bé\nc\n")
    lines = highrank("evaluate", "score", "log", "text", cwd=tmp_path).stdout.splitlines()
    assert lines == [
        "test_perplexity 5.66 tokens:12", "word_perplexity 64.0 text_words:5",
        "bits_per_byte 3.75 bytes:8",
    ]  # fmt: skip


def test_only_the_requested_scores_are_written(folder):
    for words, names in (
        ("", {"sacrebleu", "chrf"}),
        ("--tokenise fr", {"sacrebleu", "chrf", "bleu_tokenised"}),
        ("--tokenise de --compound-split",
         {"sacrebleu", "chrf", "bleu_tokenised", "bleu_compound_split"}),
    ):  # fmt: skip
        assert score(folder, *words.split()).exit_code == 0
        scores = json.loads((folder / "scores.json").read_text())
        assert scores.keys() == names
        assert {entry["value"] for entry in scores.values()} == {100.0}


@pytest.mark.parametrize(("test", "sign"), [("bootstrap", "bs:50"), ("randomisation", "ar:50")])
def test_other_systems_are_compared_with_the_first(folder, test, sign):
    (folder / "other").write_text("Nichts davon.\nEr liest zehn Bücher im Jahr.\n")
    (folder / "third").write_text("Nichts davon.\nEr liest zehn Bücher.\n")
    words = ["--against", "third", "--against", "other", "--test", test, "--samples", 50]
    assert score(folder, *words).exit_code == 0
    paired = json.loads((folder / "paired.json").read_text())
    baseline, other, ours = paired["scores"]
    assert baseline["score"] < other["score"] < ours["score"] == pytest.approx(100)
    assert baseline["p_value"] is None and 0 < ours["p_value"] <= 1
    assert sign in paired["signature"]
    assert "given twice" in score(folder, *words, "--against", "other").stderr
    lines = (folder / "third").read_text().splitlines()
    generated = [f"D-{n}\t-0.5\t{line}\n" for n, line in enumerate(lines)]
    (folder / "third").write_text("".join(reversed(generated)))  # as fairseq-generate prints
    assert score(folder, *words).exit_code == 0
    assert json.loads((folder / "paired.json").read_text())["scores"][0] == baseline


def test_the_table_shows_the_papers_scores_next_to_ours(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps({"metrics": {"sacrebleu": 27.0}}))
    result = highrank("published", "wmt14_en_de", "--results", "results.json", cwd=tmp_path)
    assert "| . | 27.0 |" in result.stdout
    assert "Ott et al. 2018" in result.stdout
