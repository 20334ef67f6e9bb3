"""results/ledger.py on what stages leave: text, binarised data, logs."""

import json

import numpy as np
import pytest
from fairseq.data.indexed_dataset import MMapIndexedDataset

from highrank_plugins.common.score import Score
from highrank_plugins.results.ledger import add_scored, describe, read_ledger
from highrank_plugins.results.scoring import ScoreError


def write_index(path, sizes):
    path.parent.mkdir(parents=True, exist_ok=True)
    with MMapIndexedDataset.Index.writer(str(path), np.uint16) as index:
        index.write(sizes)


@pytest.fixture
def translator(tmp_path):
    """Leave what the stages of a translator leave of five pairs, of which one is empty."""
    for stage in ("text", "pieces"):
        (tmp_path / stage).mkdir()
        for language in ("de", "en"):
            (tmp_path / stage / f"train.{language}").write_text("a b\n" * 4)
            (tmp_path / stage / f"test.{language}").write_text("a\n" * 2)
            lengths = [3, 3, 5, 3] if language == "de" else [3, 8, 3, 3]
            write_index(tmp_path / "data-bin" / f"train.en-de.{language}.idx", lengths)
            write_index(tmp_path / "data-bin" / f"test.en-de.{language}.idx", [2] * 2)
    report = {
        "all": {"kept": 4, "empty": 1},
        "words of de": {"kept": 8, "empty": 0},
        "words of en": {"kept": 8, "empty": 7},
    }
    (tmp_path / "text" / "cleaning.json").write_text(json.dumps(report))
    (tmp_path / "train").mkdir()
    skipped = "1 samples have invalid sizes and will be skipped, max_positions=(9, 4), first\n"
    (tmp_path / "train" / "train.log").write_text(skipped * 2)  # of two starts
    return tmp_path


def read(folder, target="de"):
    return read_ledger(folder / "data-bin", folder / "train", target)


def test_every_stage_of_a_translator_is_counted(translator):
    ledger = read(translator)
    assert ledger["text"]["train.en"] == {
        "in": {"sentences": 5, "words": 15},
        "out": {"sentences": 4, "words": 8},
        "left out": {"empty": {"sentences": 1, "words": 7}},
    }
    assert ledger["pieces"]["train.de"]["in"] == {"sentences": 4, "words": 8}
    assert ledger["pieces"]["train.de"]["out"] == {"sentences": 4, "tokens": 12}
    binarised = ledger["data-bin"]["test.de"]
    assert binarised["in"] == binarised["out"] == {"sentences": 2, "tokens": 4}
    trained = ledger["train"]["train.de"]
    assert trained["in"] == {"sentences": 4, "tokens": 14}
    assert trained["out"] == {"sentences": 3, "tokens": 9}
    (translator / "test.de").write_text("b\n" * 2)
    add_scored(ledger, {}, "de", translator / "test.de")
    lines = describe(ledger)
    assert "text, train.en: 4 of 5 sentences; left out: empty 1" in lines
    assert "text, train.en: 8 of 15 words; left out: empty 7" in lines
    reason = "longer than the model's positions"
    assert f"train, train.de: 3 of 4 sentences; left out: {reason} 1" in lines
    assert f"train, train.de: 9 of 14 tokens; left out: {reason} 5" in lines
    assert "evaluate, test.de: 2 of 2 sentences" in lines


@pytest.mark.parametrize("limits", ["(9, 9)", "(7, 4)"])
def test_tokens_are_unknown_where_other_samples_are_that_long(translator, limits):
    log = translator / "train" / "train.log"
    log.write_text(log.read_text().replace("(9, 4)", limits))
    trained = read(translator)["train"]["train.de"]
    assert trained["out"] == {"sentences": 3}
    assert list(trained["left out"].values()) == [{"sentences": 1}]


@pytest.mark.parametrize("block", [1, 2, 3, 1 << 24])
def test_words_are_counted_across_the_ends_of_blocks(translator, monkeypatch, block):
    monkeypatch.setattr("highrank_plugins.results.ledger._BLOCK", block)
    (translator / "text" / "test.de").write_text(" ab  c\td\r\n\nü e")
    ledger = read_ledger(translator / "data-bin", translator / "train")
    assert ledger["text"]["test.de"]["out"] == {"sentences": 2, "words": 5}


def test_a_finetuning_run_is_a_stage_of_its_own(translator):
    (translator / "finetune").mkdir()
    (translator / "finetune" / "train.log").write_text("nothing is skipped here\n")
    ledger = read_ledger(
        translator / "data-bin", translator / "train", "de", translator / "finetune"
    )
    assert list(ledger)[-2:] == ["train", "finetune"]
    assert ledger["train"]["train.de"]["out"]["sentences"] == 3
    assert ledger["finetune"]["train.de"]["out"] == {"sentences": 4, "tokens": 14}


def test_skipped_samples_of_a_validation_set_are_not_of_training(translator):
    log = translator / "train" / "train.log"
    log.write_text('begin validation on "valid" subset\n' + log.read_text())
    trained = read(translator)["train"]["train.de"]
    assert trained["out"] == trained["in"] and not trained["left out"]


def test_names_of_languages_may_have_hyphens(translator):
    for path in [*translator.glob("*/*.de"), *translator.glob("*/*de.idx")]:
        path.rename(path.with_name(path.name.replace("de", "pt-br")))
    ledger = read(translator, "pt-br")
    assert ledger["pieces"]["train.pt-br"]["out"] == {"sentences": 4, "tokens": 12}
    assert ledger["train"]["train.pt-br"]["out"] == {"sentences": 3, "tokens": 9}


def test_a_stage_that_lost_a_sentence_is_refused(translator):
    (translator / "pieces" / "train.en").write_text("a b\n" * 3)
    with pytest.raises(ScoreError, match=r"pieces: train\.en has 3 sentences, expected 4"):
        read(translator)


def test_translations_of_part_of_the_text_are_refused(translator):
    (translator / "test.de").write_text("b\n")
    with pytest.raises(ScoreError, match="1 translations of 2 sentences"):
        add_scored(read(translator), {}, "de", translator / "test.de")


def perplexity(tokens):
    return Score(9.0, f"tokens:{tokens}|eval:static")


def test_scores_of_part_of_a_text_are_refused(tmp_path):
    for split, sizes in {"train": [2, 1], "test": [4]}.items():
        write_index(tmp_path / "data-bin" / f"{split}.idx", sizes)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text("a\n\n")
    report = {"in": {"sentences": 7, "tokens": 9}, "out": {"sentences": 2, "tokens": 3}}
    report["left out"] = {"after max_train_lines": {"sentences": 5, "tokens": 6}}
    (tmp_path / "text" / "counts.json").write_text(json.dumps({"train.txt": report}))
    ledger = read(tmp_path, None)
    assert ledger["text"]["train.txt"] == report
    assert ledger["data-bin"]["train"]["in"] == ledger["data-bin"]["train"]["out"]
    assert ledger["train"]["train"]["out"] == {"sentences": 2, "tokens": 3}
    add_scored(ledger, {"test_perplexity": perplexity(4), "test_kld": perplexity(1)})
    assert describe(ledger) == [
        "text, train.txt: 2 of 7 sentences; left out: after max_train_lines 5",
        "text, train.txt: 3 of 9 tokens; left out: after max_train_lines 6",
        "evaluate, test: 4 of 4 tokens",
    ]
    ledger["text"]["train.txt"]["left out"] = {"after max_train_lines": 5}  # an earlier revision
    assert describe(ledger)[:2] == [
        "text, train.txt: 2 of 7 sentences; left out: after max_train_lines 5",
        "text, train.txt: 3 of 9 tokens",
    ]
    kinds = ("perplexity", "perplexity_before_finetuning", "dynamic_perplexity")
    for metric in map("test_{}".format, kinds):
        with pytest.raises(ScoreError, match=f"{metric}: 3 of 4 tokens of test were scored"):
            add_scored(ledger, {metric: perplexity(3)})


def test_shards_count_together_and_the_first_one_is_scored(tmp_path):
    for number, sizes in ((1, [2]), (2, [5, 5])):
        write_index(tmp_path / "data-bin" / f"shard0{number}" / "train.idx", sizes)
    ledger = read(tmp_path, None)
    assert ledger["data-bin"]["train"]["out"] == {"sentences": 3, "tokens": 12}
    add_scored(ledger, {"train_perplexity": perplexity(2)})
    assert ledger["evaluate"] == {
        "shard01/train": {"in": {"tokens": 2}, "out": {"tokens": 2}, "left out": {}}
    }
