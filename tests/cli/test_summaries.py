"""The last lines of recipes: a file that is not a record is named, whatever reads it."""

import json
import re

import pytest
from typer.testing import CliRunner

from highrank_plugins.cli import app


def invoke(*words):
    words = [str(word) for word in words]
    return CliRunner().invoke(app, words)


DEEP = "[" * 100_000
STATS = {"epoch": 1, "train_num_updates": "3", "train_wall": "9", "train_wps": "100"}
EPOCH = f"a | INFO | train | {json.dumps(STATS)}\n"


@pytest.mark.parametrize(
    "text", ["", "[1]", "{}", '{"metrics": []}', '{"metrics": {"a": 1}}', DEEP]
)
@pytest.mark.parametrize("command", ["lm-summary", "summary", "dialogue-summary"])
def test_a_file_that_is_not_a_record_is_refused(command, text, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(text)
    texts = [] if command == "lm-summary" else [path] * 3
    done = invoke("results", command, path, *texts)
    assert done.exit_code == 2 and re.search(
        "results.json(: not a record of a run|: not JSON| has no bleu1)", done.output
    )


def test_a_record_without_what_a_summary_needs_is_refused(tmp_path):
    text, path = tmp_path / "text", tmp_path / "results.json"
    text.write_text("a b\n")
    names = ("test_perplexity", "chrf", "sacrebleu")
    whole = {
        "metrics": dict.fromkeys(("kld", *names), 9.0),
        "signature": "s",
        "signatures": dict.fromkeys(names, "s"),
        "train": {"updates": 3, "words_per_second": 9},
        "hardware": {"cores": 1},
        "versions": {"torch": "2"},
        "git": None,
    }
    commands = {"lm-summary": names[:1], "summary": names[1:]}
    for command, needed in commands.items():
        words = ("results", command, path, *([text] * 3 if command == "summary" else []))
        path.write_text(json.dumps(whole))
        assert invoke(*words).exit_code == 0
        for block in ("metrics", "signatures"):
            for name in needed:
                less = {key: value for key, value in whole[block].items() if key != name}
                path.write_text(json.dumps({**whole, block: less}))
                done = invoke(*words)
                assert done.exit_code == 2 and f"{block}.{name} is missing" in done.output
        path.write_text(json.dumps({key: whole[key] for key in whole if key != "signature"}))
        assert "signature is missing" in invoke(*words).output


def test_a_paired_test_is_part_of_the_record_and_the_summary(tmp_path):
    for name, text in {"text": "a b c d e\n" * 4, "other": "a b c d\n" * 4}.items():
        (tmp_path / name).write_text(text)
    generated = "".join(f"D-{number}\t-0.1\ta b c d e\n" for number in range(4))
    (tmp_path / "generated").write_text(generated)
    (tmp_path / "config.yaml").write_text("data: {vocab_size: 5}\ntrain: {arch: x}\n")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "command.sh").write_text("fairseq-train data\n")
    (tmp_path / "train" / "train.log").write_text(EPOCH)
    scores, paired, results = (tmp_path / name for name in ("scores", "paired.json", "results"))
    words = ["--output", scores, "--hypotheses", tmp_path / "ours", "--against", tmp_path / "other"]
    done = invoke("evaluate", "score", tmp_path / "generated", tmp_path / "text", *words)
    assert done.exit_code == 0, done.output
    words = ["--scores", scores, "--paired", paired, "--config", tmp_path / "config.yaml"]
    done = invoke(
        "results", "record", *words, "--training", tmp_path / "train", "--output", results
    )
    assert done.exit_code == 0, done.output
    assert json.loads(results.read_text())["paired"] == json.loads(paired.read_text())
    done = invoke("results", "summary", results, *[tmp_path / "text"] * 3)
    assert "training: 3 updates, 9 s, up to epoch 1, 100 words/s\n" in done.output
    assert re.search(rf"against {tmp_path}/other, \d+\.\d\d: p = 0\.\d{{4}} nrefs", done.output)


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
    (tmp_path / "train.log").write_text(EPOCH)
    words = [word for name in files for word in (name, tmp_path / name)]
    more = ["--config", tmp_path / "config.yaml", "--training", tmp_path]
    done = invoke("results", "record", *words, *more, "--output", tmp_path / "results.json")
    assert done.exit_code == 2 and f"{option}: {message}" in done.output


def test_a_measure_that_is_not_finite_is_named(tmp_path):
    """The file has null in place of NaN."""
    from highrank_plugins.cli.results import _scores

    for split in ("test", "valid"):
        text = "Evaluated 40 tokens in 9.5s\nLoss (base 2): 5.8000, Perplexity: 55.72\n"
        (tmp_path / f"{split}.log").write_text(text)
    (tmp_path / "retention.json").write_text(json.dumps({"whole": None, "tokens": 40}))
    with pytest.raises(ValueError, match="test_retention is None, not a finite number"):
        _scores(tmp_path, finetuned=False)


def test_texts_of_different_lengths_are_named(tmp_path):
    stats = {"train": {"updates": 1, "words_per_second": 1}, "hardware": {"cores": 1}}
    more = {
        "versions": {"torch": "2"},
        "git": None,
        "signatures": {"sacrebleu": "s", "chrf": "c"},
        "signature": "s",
    }
    record = {"metrics": {"sacrebleu": 1.0, "chrf": 1.0}, **stats, **more}
    (tmp_path / "results.json").write_text(json.dumps(record))
    for name, count in {"source": 3, "reference": 3, "translations": 2}.items():
        (tmp_path / name).write_text("a line\n" * count)
    texts = [tmp_path / name for name in ("source", "reference", "translations")]
    done = invoke("results", "summary", tmp_path / "results.json", *texts)
    assert done.exit_code == 2 and "translations: 2 lines, but" in done.output


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
    done = invoke(*words, "--baseline", "moss")
    assert done.exit_code == 2 and "--baseline moss: the systems are mos" in done.stderr


def test_published_scores_need_a_record(tmp_path):
    path = tmp_path / "results.json"
    path.write_text("{}")
    done = invoke("results", "published", "ptb", "--results", path)
    assert done.exit_code == 2 and "results.json: not a record of a run" in done.output


def test_measures_of_both_splits_become_scores_of_a_record(tmp_path):
    """Put them into the folder of the evaluation, and into `valid` below it."""
    from highrank_plugins.cli.results import _scores

    for split in ("test", "valid"):
        text = "INFO:fairseq_cli.eval_lm:Evaluated 40 tokens in 9.5s (8687.99 tokens/s)\n"
        text += "INFO:fairseq_cli.eval_lm:Loss (base 2): 5.8000, Perplexity: 55.72\n"
        (tmp_path / f"{split}.log").write_text(text)
    (tmp_path / "valid").mkdir()
    for folder, mean in ((tmp_path, 4.5), (tmp_path / "valid", 3.5)):
        found = {"contexts": 40, "all_pairs": mean, "sampled": None}
        (folder / "kld.json").write_text(json.dumps(found))
    scores = _scores(tmp_path, finetuned=False)
    assert (scores["test_kld"].value, scores["valid_kld"].value) == (4.5, 3.5)
