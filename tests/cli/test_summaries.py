"""The last lines of recipes: a file that is not a record is named, whatever reads it."""

import json
import re

import pytest
from typer.testing import CliRunner

from highrank_plugins.cli import app
from highrank_plugins.results.summary import read_scores


def invoke(*words):
    words = [str(word) for word in words]
    return CliRunner().invoke(app, words)


DEEP = "[" * 100_000
EPOCH = {"tag": "train", "epoch": 1, "num_updates": 3, "wall": 9, "wps": 100}


@pytest.fixture
def record(tmp_path):
    """Write the record of a small run, with more options, and return the command's result."""
    (tmp_path / "config.yaml").write_text("data: {vocab_size: 5}\ntrain: {arch: x}\n")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "command.sh").write_text("fairseq-train data\n")
    (tmp_path / "train" / "metrics.jsonl").write_text(json.dumps(EPOCH) + "\n")
    given = ["--config", tmp_path / "config.yaml", "--training", tmp_path / "train"]
    results = ["--output", tmp_path / "results.json"]

    def written(scores, *words):
        if isinstance(scores, dict):
            named = {name: {"value": n, "signature": f"s:{name}"} for name, n in scores.items()}
            (tmp_path / "scores").write_text(json.dumps(named))
            scores = tmp_path / "scores"
        return invoke("record", "--scores", scores, *given, *results, *words)

    return written


def test_a_paired_test_is_part_of_the_record_and_the_summary(record, tmp_path):
    for name, text in {"text": "a b c d e\n" * 4, "other": "a b c d\n" * 4}.items():
        (tmp_path / name).write_text(text)
    generated = "".join(f"D-{number}\t-0.1\ta b c d e\n" for number in range(4))
    (tmp_path / "generated").write_text(generated)
    scores, paired = tmp_path / "scores", tmp_path / "paired.json"
    words = ["--output", scores, "--hypotheses", tmp_path / "ours", "--against", tmp_path / "other"]
    done = invoke("evaluate", "score", tmp_path / "generated", tmp_path / "text", *words)
    assert done.exit_code == 0, done.output
    texts = [word for _ in range(3) for word in ("--samples", tmp_path / "text")]
    done = record(scores, "--paired", paired, *texts)
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["paired"] == json.loads(paired.read_text())
    assert "training: 3 updates, 9 s, up to epoch 1, 100 words/s\n" in done.output
    assert re.search(rf"against {tmp_path}/other, \d+\.\d\d: p = 0\.\d{{4}} nrefs", done.output)
    assert done.output.count(" translation  a b c d e\n\n") == 5
    assert re.search(r"\nchrF [\d.]+ nrefs\S+\nsacreBLEU [\d.]+ nrefs\S+\n$", done.output)


def test_the_summary_of_a_language_model_ends_with_its_perplexity(record, tmp_path):
    file = tmp_path / "summary.txt"
    scores = {"test_perplexity": 9.5, "test_kld": 0.001}
    done = record(scores, "--summary", file, "--published", "ptb")
    assert done.exit_code == 0 and done.output == ""
    table, _, rest = file.read_text().partition("tests the numbers that compare.\n\n")
    assert f"| {tmp_path} |  | 9.50 |" in table
    assert rest.splitlines() == [
        "         test_perplexity  9.5  s:test_perplexity",
        "                test_kld  0.001  s:test_kld",
        "training: 3 updates, 9 s, up to epoch 1, 100 words/s",
        "test_kld is below 0.01; that of equal predictions everywhere is 0",
        "test perplexity 9.5 s:test_perplexity",
    ]


def test_the_summary_of_a_dialogue_system_has_samples_and_all_scores(record, tmp_path):
    (tmp_path / "contexts").write_text("how are you\n" * 3)
    (tmp_path / "references").write_text("fine\tgood\tall right\tno\n" * 3)
    (tmp_path / "generated").write_text("".join(f"D-{n}\t-1\tfine, {n}\n" for n in range(3)))
    names = ("contexts", "references", "generated")
    texts = [word for name in names for word in ("--samples", tmp_path / name)]
    scores = {"test_perplexity": 8.25, "bleu1_precision": 0.5, "bleu1_recall": 0.25}
    lines = record(scores, *texts).output.splitlines()
    assert lines[:6] == ["   context  how are you", " reference  fine", " reference  good",
                         " reference  all right", "  response  fine, 0", ""]  # fmt: skip
    assert "         bleu1_precision  0.5  s:bleu1_precision" in lines
    assert lines[-1] == "test perplexity 8.25 s:test_perplexity"


def test_texts_of_different_lengths_are_named(record, tmp_path):
    for name, count in {"source": 3, "reference": 3, "translations": 2}.items():
        (tmp_path / name).write_text("a line\n" * count)
    names = ("source", "reference", "translations")
    texts = [word for name in names for word in ("--samples", tmp_path / name)]
    done = record({"chrf": 1.0, "sacrebleu": 1.0}, *texts)
    assert done.exit_code == 2 and "translations: 2 lines, but" in done.output
    done = record({"chrf": 1.0, "sacrebleu": 1.0}, *texts[:4])
    assert done.exit_code == 2 and "--samples: give three texts" in done.output
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--scores", DEEP, "not JSON"),
        ("--scores", "[1]", "no scores with value and signature"),
        ("--scores", "{}", "no scores with value and signature"),
        ("--scores", '{"a": {"value": "x", "signature": "s"}}', "a is x, not a finite number"),
        ("--scores", '{"a": {"value": NaN, "signature": "s"}}', "a is nan, not a finite number"),
        ("--scores", '{"a": {"val": 1}}', "no scores with value and signature"),
        ("--paired", "[1]", "not a paired test"),
        ("--paired", "[", "not JSON"),
    ],
)
def test_a_file_that_a_record_cannot_read_is_named(tmp_path, option, text, message):
    files = {"--scores": '{"a": {"value": 1, "signature": "s"}}', option: text}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "config.yaml").write_text("data: {vocab_size: 5}\ntrain: {arch: x}\n")
    (tmp_path / "command.sh").write_text("fairseq-train data\n")
    (tmp_path / "metrics.jsonl").write_text(json.dumps(EPOCH) + "\n")
    words = [word for name in files for word in (name, tmp_path / name)]
    more = ["--config", tmp_path / "config.yaml", "--training", tmp_path]
    done = invoke("record", *words, *more, "--output", tmp_path / "results.json")
    assert done.exit_code == 2 and f"{option}: {message}" in done.output


def test_a_table_without_a_baseline_says_so(tmp_path):
    stats = {"train": {"updates": 1, "words_per_second": 1}, "hardware": {"cores": 1}}
    record = {"metrics": {"sacrebleu": 1.0}, **stats, "versions": {"torch": "2"}, "git": None}
    paths = [tmp_path / f"mos-{seed}.json" for seed in (1, 2)]
    for path in paths:
        path.write_text(json.dumps(record))
    words = ["compare", *paths, "--metric", "sacrebleu"]
    done = invoke(*words)
    assert done.exit_code == 0 and "no system is named softmax. Choose" in done.output
    assert "no system" not in invoke(*words, "--baseline", "mos").output


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
