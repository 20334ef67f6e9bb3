"""results/ledger.py on what stages leave: text, binarised data, logs."""

import json

import numpy as np
import pytest
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.tokenizer import tokenize_line

from highrank_plugins.common.names import Score
from highrank_plugins.results.ledger import describe, read_ledger

WHOLE = {"sentences": 2, "tokens": 4}  # the translator's test text
LONG = "longer than the model's positions"


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
            lengths = [3, 3, 5, 3] if language == "de" else [3, 8, 3, 3]  # in pieces, with the end
            words = [2] * 4 if stage == "text" else [length - 1 for length in lengths]
            lines = [" ".join("a" * count) + "\n" for count in words]
            (tmp_path / stage / f"train.{language}").write_text("".join(lines))
            (tmp_path / stage / f"test.{language}").write_text("a\n" * 2)
            write_index(tmp_path / "data-bin" / f"train.en-de.{language}.idx", lengths)
            write_index(tmp_path / "data-bin" / f"test.en-de.{language}.idx", [2] * 2)
    report = {"all": {"kept": 4, "empty": 1}, "words of de": {"kept": 8, "empty": 0}}
    report["words of en"] = {"kept": 8, "empty": 7}
    (tmp_path / "text" / "cleaning.json").write_text(json.dumps(report))
    (tmp_path / "train").mkdir()
    skipped = "1 samples have invalid sizes and will be skipped, max_positions=(9, 4), first\n"
    (tmp_path / "train" / "train.log").write_text(skipped * 2)  # of two starts
    return tmp_path


def read(run, target="de", stages=("train",), **more):
    return read_ledger(run / "data-bin", [run / stage for stage in stages], target, **more)


@pytest.mark.parametrize("de", ["de", "pt-br"])  # names of languages may have hyphens
def test_every_stage_of_a_translator_is_counted(translator, de):
    for path in [*translator.glob("*/*.de"), *translator.glob("*/*de.idx")]:
        path.rename(path.with_name(path.name.replace("de", de)))
    (translator / f"test.{de}").write_text("b\n" * 2)
    (translator / "finetune").mkdir()
    (translator / "finetune" / "train.log").write_text("nothing is skipped here\n")
    ledger = read(translator, de, ("train", "finetune"), folder=translator)
    assert ledger["text"]["train.en"] == {
        "in": {"sentences": 5, "words": 15},
        "out": {"sentences": 4, "words": 8},
        "left out": {"empty": {"sentences": 1, "words": 7}},
    }
    assert ledger["pieces"][f"train.{de}"]["in"] == {"sentences": 4, "words": 8}
    whole = {"sentences": 4, "tokens": 14}
    assert ledger["pieces"][f"train.{de}"]["out"] == whole
    binarised = ledger["data-bin"][f"test.{de}"]
    assert binarised["in"] == binarised["out"] == {"sentences": 2, "tokens": 4}
    trained = ledger["train"][f"train.{de}"]
    assert trained["in"] == ledger["finetune"][f"train.{de}"]["out"] == whole
    assert trained["out"] == {"sentences": 3, "tokens": 9}
    assert {
        "text, train.en: 4 of 5 sentences; left out: empty 1",
        "text, train.en: 8 of 15 words; left out: empty 7",
        f"train, train.{de}: 3 of 4 sentences; left out: {LONG} 1",
        f"train, train.{de}: 9 of 14 tokens; left out: {LONG} 5",
        f"evaluate, test.{de}: 2 of 2 sentences",
        f"evaluate, test.{de}: 2 of 2 words",
    } <= {*describe(ledger)}
    assert ledger["evaluate"][f"test.{de}"]["out"] == WHOLE | {"words": 2}


def write_hypotheses(folder, sentences, tokens=3, count=1):
    """Write an output of fairseq-generate with `count` hypotheses of each sentence."""
    (folder / "generate").mkdir(exist_ok=True)
    lines = ["2026-11-26 | INFO | fairseq_cli.generate | begins\n"]
    for number in sentences:
        lines += [f"S-{number}\ta\n", f"T-{number}\tb\n"]
        for _ in range(count):
            lines += [f"H-{number}\t-0.5\tb c\n", f"D-{number}\t-0.5\tb c\n"]
            lines.append(f"P-{number}\t{' '.join(['-0.5'] * tokens)}\n")
    path = folder / "generate" / "test.txt"
    path.write_text("".join(lines))
    return path


def test_generated_sentences_and_the_tokens_that_measures_used_are_counted(translator):
    folder = translator / "score"
    found = {
        "spectrum": {"contexts": 3}, "kld": {"contexts": 4}, "retention": {"tokens": 1},
        "saturation": {"press_rank": 3},
        "dynamic_eval": {"tokens": 4, "metrics": {"perplexity": 9}},
    }  # fmt: skip
    folder.mkdir()
    for name, result in found.items():
        (folder / f"{name}.json").write_text(json.dumps(result))
    made = [write_hypotheses(translator, [1, 0], count=2)]
    ledger = read(translator, generated=made, folder=folder)
    out = {"sentences": 2, "tokens": 12}
    assert ledger["generate"] == {
        "test.en": {"in": WHOLE, "out": WHOLE, "left out": {}},
        "test.de": {"in": {"sentences": 2}, "out": out, "left out": {}},
    }
    left_out = {"after --tokens": {"tokens": 1}}
    part = {"in": {"tokens": 4}, "out": {"tokens": 3}, "left out": left_out}
    assert ledger["spectrum"]["test.de"] == part
    for name in ("kld", "dynamic_eval"):
        assert ledger[name] == {"test.de": {"in": WHOLE, "out": WHOLE, "left out": {}}}
    assert "saturation" not in ledger
    lines = describe(ledger)
    assert "retention, test.de: 1 of 4 tokens; left out: after --tokens 3" in lines
    assert not any(line.startswith(("kld", "generate")) for line in lines)


GOOD = {"all": {"kept": 4, "empty": 1}}


# file, its content (hypotheses of some sentences, text, or a value of JSON), and the message
@pytest.mark.parametrize(("name", "content", "message"), [
    *(("generate", of, r"generate: test\.en has . sentences, expected 2")
      for of in ([0], [0, 2], [0, 1, 2])),
    ("kld.json", {"contexts": 5}, r"kld: test\.de has 5 tokens, expected 4"),
    ("kld.json", [3], r"kld\.json: not a result of kld"),
    ("test.de", "b\n", r"evaluate: test\.de has 1 sentences, expected 2"),
    ("pieces/train.en", "a a a\n" + "a a a a a a a\n" + "a a\n" * 2,
     r"data-bin: train\.en has 17 tokens, expected 18 \(18 in"),
    ("pieces/train.en", "a b\n" * 3, r"pieces: train\.en has 3 sentences, expected 4"),
    ("text/cleaning.json", [], r"cleaning\.json: not counts of cleaned text: its content: "),
    ("text/cleaning.json", {"all": {}}, r"text: train\.de has 4 sentences, expected 0"),
])  # fmt: skip
def test_a_stage_that_lost_something_and_damaged_counts_are_refused(
    translator, name, content, message
):
    made = [write_hypotheses(translator, content)] if name == "generate" else []
    if not made:
        text = content if isinstance(content, str) else json.dumps(content)
        (translator / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read(translator, generated=made, folder=translator)


@pytest.mark.parametrize(("option", "processes", "drops"), [
    ("--skip-remainder-batch", 1, True),
    ("--grouped-shuffling", 1, False),
    ("--grouped-shuffling", 2, True),
    ("--seed", 2, False),
])  # fmt: skip
def test_a_last_batch_that_an_option_drops_is_named(translator, option, processes, drops):
    logs = translator / "train" / "logs"
    logs.mkdir()
    for rank in range(processes):
        (logs / f"rank{rank}.log").touch()
    (translator / "train" / "command.sh").write_text(f"fairseq-train data \\\n    {option}\n")
    ledger = read(translator)
    trained = ledger["train"]["train.de"]
    assert ("last batch" in trained["left out"]) == drops and LONG in trained["left out"]
    assert bool(trained["out"]) != drops
    assert ("train, train.de: left out, not counted: last batch" in describe(ledger)) == drops


def test_tokens_are_unknown_where_other_samples_are_that_long_and_validation_skips_none(translator):
    log = translator / "train" / "train.log"
    text = log.read_text()
    for limits in ("(9, 9)", "(7, 4)"):
        log.write_text(text.replace("(9, 4)", limits))
        trained = read(translator)["train"]["train.de"]
        assert trained["out"] == {"sentences": 3}
        assert list(trained["left out"].values()) == [{"sentences": 1}]
    log.write_text('begin validation on "valid" subset\n' + text)
    trained = read(translator)["train"]["train.de"]
    assert trained["out"] == trained["in"] and not trained["left out"]


def test_the_words_of_a_text_are_those_that_fairseq_reads(translator):
    blanks = [chr(code) for code in range(0x110000) if chr(code).isspace()]
    blanks = [blank for blank in blanks if blank not in "\n\r"]  # these end a line
    line = "a" + "b".join(blanks) + "ü \u200bc d\u2030e"  # neither \u200b nor \u2030 is a blank
    (translator / "text" / "test.de").write_text(f"{line}\n\n", encoding="utf-8")
    found = read(translator, None)["text"]["test.de"]["out"]
    assert found["words"] == len(tokenize_line(line)) == len(blanks) + 3


def perplexity(tokens):
    return Score(9.0, f"tokens:{tokens}|eval:static")


def test_the_text_of_a_language_model_is_counted_and_scores_of_a_part_are_refused(tmp_path):
    for split, sizes in {"train": [2, 1], "test": [4], "valid": [7]}.items():
        write_index(tmp_path / "data-bin" / f"{split}.idx", sizes)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text("a\n\n")
    report = {"in": {"sentences": 7, "tokens": 9}, "out": {"sentences": 2, "tokens": 3}}
    report["left out"] = {"after max_train_lines": {"sentences": 5, "tokens": 6}}
    (tmp_path / "text" / "counts.json").write_text(json.dumps({"train.txt": report}))
    for folder in (tmp_path, tmp_path / "valid"):
        folder.mkdir(exist_ok=True)
        (folder / "predictions.json").write_text(json.dumps({"tokens": 4}))
    scores = {"test_perplexity": perplexity(4), "test_kld": perplexity(1)}
    ledger = read(tmp_path, None, scores=scores, folder=tmp_path)
    assert ledger["text"]["train.txt"] == report
    assert ledger["data-bin"]["train"]["in"] == ledger["data-bin"]["train"]["out"]
    assert ledger["train"]["train"]["out"] == {"sentences": 2, "tokens": 3}
    assert describe(ledger) == [
        "text, train.txt: 2 of 7 sentences; left out: after max_train_lines 5",
        "text, train.txt: 3 of 9 tokens; left out: after max_train_lines 6",
        "evaluate, test: 1 of 1 sentences",
        "evaluate, test: 4 of 4 tokens",
        "predictions, valid: 4 of 7 tokens; left out: after --tokens 3",
    ]
    kinds = ("perplexity", "perplexity_before_finetuning", "dynamic_perplexity")
    for metric in map("test_{}".format, kinds):
        part = {metric: perplexity(3), "test_cache_perplexity": perplexity(4)}
        with pytest.raises(ValueError, match="evaluate: test has 3 tokens, expected 4"):
            read(tmp_path, None, scores=part)


def test_shards_count_together_and_the_first_one_is_scored(tmp_path):
    for number, sizes in ((1, [2]), (2, [5, 5])):
        write_index(tmp_path / "data-bin" / f"shard0{number}" / "train.idx", sizes)
    ledger = read(tmp_path, None, scores={"train_perplexity": perplexity(2)})
    assert ledger["data-bin"]["train"]["out"] == {"sentences": 3, "tokens": 12}
    whole = {"sentences": 1, "tokens": 2}
    assert ledger["evaluate"] == {"shard01/train": {"in": whole, "out": whole, "left out": {}}}
