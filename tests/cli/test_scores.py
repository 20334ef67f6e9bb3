"""`highrank evaluate score`, `record` and `published`: scores, and the last lines of recipes."""

import json
import re

import pytest

from highrank_plugins.results.summary import read_scores
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


DEEP = "[" * 100_000
EPOCH = {"tag": "train", "epoch": 1, "num_updates": 3, "wall": 9, "wps": 100}


@pytest.fixture
def record(tmp_path):
    """Write the record of a small run, with more options, and return the command's result."""
    (tmp_path / "config.yaml").write_text("data: {vocab_size: 5}\ntrain: {arch: x}\n")
    (tmp_path / "command.sh").write_text("fairseq-train data\n")
    (tmp_path / "metrics.jsonl").write_text(json.dumps(EPOCH) + "\n")
    given = ["--config", "config.yaml", "--training", ".", "--output", "results.json"]

    def written(scores, *words):
        if scores:
            named = {name: {"value": n, "signature": f"s:{name}"} for name, n in scores.items()}
            (tmp_path / "scores").write_text(json.dumps(named))
        return highrank("record", "--scores", "scores", *given, *words, cwd=tmp_path)

    return written


def test_a_paired_test_is_part_of_the_record_and_the_summary(record, tmp_path):
    for name, text in {"text": "a b c d e\n" * 4, "other": "a b c d\n" * 4}.items():
        (tmp_path / name).write_text(text)
    generated = "".join(f"D-{number}\t-0.1\ta b c d e\n" for number in range(4))
    (tmp_path / "generated").write_text(generated)
    words = ["--output", "scores", "--hypotheses", "ours", "--against", "other"]
    done = highrank("evaluate", "score", "generated", "text", *words, cwd=tmp_path)
    assert done.exit_code == 0, done.output
    done = record(None, "--paired", "paired.json", *3 * ["--samples", "text"])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["paired"] == json.loads((tmp_path / "paired.json").read_text())
    assert "training: 3 updates, 9 s, up to epoch 1, 100 words/s\n" in done.output
    assert re.search(r"against other, \d+\.\d\d: p = 0\.\d{4} nrefs", done.output)
    assert done.output.count(" translation  a b c d e\n\n") == 4
    assert re.search(r"\nchrF [\d.]+ nrefs\S+\nsacreBLEU [\d.]+ nrefs\S+\n$", done.output)


def test_the_summary_of_a_language_model_ends_with_its_perplexity(record, tmp_path):
    scores = {"test_perplexity": 9.5, "test_kld": 0.001}
    done = record(scores, "--summary", "summary.txt", "--published", "ptb")
    assert done.exit_code == 0 and done.output == ""
    text = (tmp_path / "summary.txt").read_text()
    table, _, rest = text.partition("tests the numbers that compare.\n\n")
    assert "| . |  | 9.50 |" in table
    assert rest.splitlines() == [
        "         test_perplexity  9.5  s:test_perplexity",
        "                test_kld  0.001  s:test_kld",
        "training: 3 updates, 9 s, up to epoch 1, 100 words/s",
        "test_kld is below 0.01; that of equal predictions everywhere is 0",
        "test perplexity 9.5 s:test_perplexity",
    ]


def test_texts_of_different_lengths_are_named(record, tmp_path):
    for name, count in {"source": 3, "reference": 3, "translations": 2}.items():
        (tmp_path / name).write_text("a line\n" * count)
    texts = "--samples source --samples reference --samples translations".split()
    done = record({"chrf": 1.0, "sacrebleu": 1.0}, *texts)
    assert done.exit_code == 2 and "translations: 2 lines, but" in done.output
    done = record({"chrf": 1.0, "sacrebleu": 1.0}, *texts[:4])
    assert done.exit_code == 2 and "--samples: give three texts" in done.output
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--scores", DEEP, "not JSON"),
        ("--scores", '{"a": {"value": "x", "signature": "s"}}', "a is x, not a finite number"),
        ("--scores", '{"a": {"value": 1, "signature": 5}}', "not scores of `highrank evaluate sc"),
        ("--paired", '{"scores": 3, "signature": "s"}', "not a paired test of `highrank"),
    ],
)
def test_a_file_that_a_record_cannot_read_is_named(record, tmp_path, option, text, message):
    (tmp_path / "bad").write_text(text)
    done = record({"a": 1.0}, option, "bad")
    assert done.exit_code == 2 and f"bad: {message}" in done.output


def test_measures_of_both_splits_become_finite_scores_of_a_record(tmp_path):
    """Put them into the folder of the evaluation, and into `valid` below it; null is NaN."""
    for split in ("test", "valid"):
        text = "INFO:fairseq_cli.eval_lm:Evaluated 40 tokens in 9.5s (8687.99 tokens/s)\n"
        text += "INFO:fairseq_cli.eval_lm:Loss (base 2): 5.8000, Perplexity: 55.72\n"
        (tmp_path / f"{split}.log").write_text(text)
    (tmp_path / "valid").mkdir()
    for folder, mean in ((tmp_path, 4.5), (tmp_path / "valid", 3.5)):
        found = {"contexts": 40, "all_pairs": mean, "sampled": None}
        (folder / "kld.json").write_text(json.dumps(found))
    scores = read_scores(tmp_path, finetuned=False)
    assert (scores["test_kld"].value, scores["valid_kld"].value) == (4.5, 3.5)
    (tmp_path / "retention.json").write_text(json.dumps({"whole": None, "tokens": 40}))
    with pytest.raises(ValueError, match="test_retention is None, not a finite number"):
        read_scores(tmp_path, finetuned=False)
