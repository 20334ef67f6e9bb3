"""The recipe for dialogues: the corpus as text, BLEU and perplexity by hand, refusals, a run."""

import json

import pytest
from click.testing import CliRunner

from highrank_plugins.cli import as_command
from highrank_plugins.common.names import Score
from highrank_plugins.common.user_error import UserError
from recipes.switchboard.dialogue import (
    Utterance,
    read_corpus,
    read_references,
    words_of,
    write_parallel,
)
from recipes.switchboard.score import (
    ORDERS,
    dialogue_score,
    dialogue_scores,
    precision_recall,
    response_perplexity,
    sentence_bleu,
)
from tests.dialogue_corpus import SIZES, corpus, references, write_json_lines, write_references
from tests.recipes.running import accept, recipe, refused, run, stages_done

SPLITS = ("train", "valid", "test")
DIALOGUE = {
    "utts": [("A", "Hello!", []), ("A", "who is it", []), ("B", "it's me", []), ("A", "oh", [])]
}


def lines(path):
    return path.read_text().splitlines()


def left_out(folder, name):
    """Return the utterances before and after, and the reasons, of the ledger."""
    ledger = json.loads((folder / "counts.json").read_text())
    assert ledger[f"{name}.response"] == ledger[f"{name}.context"]
    entry = ledger[f"{name}.context"]
    reasons = {reason: count["sentences"] for reason, count in entry["left out"].items()}
    return entry["in"]["sentences"], entry["out"]["sentences"], reasons


def test_every_utterance_but_the_first_is_a_response_and_its_only_reference(tmp_path):
    with_noise = {"utts": [("A", " ", []), *DIALOGUE["utts"], ("B", "", [])]}
    write_json_lines(tmp_path, {key: [with_noise, DIALOGUE] for key in SPLITS})
    assert write_parallel(tmp_path, tmp_path, context=2) == dict.fromkeys((*SPLITS, "test1"), 6)
    for name in ("train", "test1"):
        reasons = {"without words": 2, "first of its dialogue": 2}
        assert left_out(tmp_path, name) == (10, 6, reasons)
    assert lines(tmp_path / "train.response") == ["who is it", "it ' s me", "oh"] * 2
    assert lines(tmp_path / "train.context")[:3] == [
        "<self> hello !",
        "<other> hello ! <other> who is it",
        "<self> who is it <other> it ' s me",
    ]
    write_parallel(tmp_path, tmp_path, context=9)
    for kind in ("context", "response"):
        assert lines(tmp_path / f"test1.{kind}") == lines(tmp_path / f"test.{kind}")
    assert lines(tmp_path / "test1.references") == lines(tmp_path / "test.response")
    context = lines(tmp_path / "test.context")[2]
    assert context == "<self> hello ! <self> who is it <other> it ' s me"


def test_references_become_a_test_set(tmp_path):
    write_json_lines(tmp_path, {key: [DIALOGUE] for key in SPLITS})
    entry = {
        "context": ["0-A: <s> <d> </s>", "1-B: <s> Who's there: you? </s> ", "2-A:me"],
        "speaker": "B",
        "responses": ["<s> Oh. </s>", "", "yes"],
    }
    write_references(tmp_path, [{**entry, "context": entry["context"][:1]}, entry])
    counts = write_parallel(tmp_path, tmp_path, context=9)
    assert left_out(tmp_path, "test1") == (2, 1, {"context without words": 1})
    assert counts["test1"] == 1 and counts["test"] == 3
    assert lines(tmp_path / "test1.context") == ["<self> who ' s there : you ? <other> me"]
    assert lines(tmp_path / "test1.response") == ["oh ."]
    assert lines(tmp_path / "test1.references") == ["oh .\tyes"]


def test_a_corpus_is_found(tmp_path):
    write_references(write_json_lines(tmp_path / "corpus"))
    found = read_corpus(tmp_path / "corpus")
    assert {split: len(dialogues) for split, dialogues in found.items()} == SIZES
    speaker, text, _ = corpus()["valid"][1]["utts"][2]
    assert found["valid"][1][2] == Utterance(speaker, words_of(text))
    write_json_lines(tmp_path / "other" / "json_data")
    assert read_corpus(tmp_path / "other") == found


EXPECTED = r"\[1\]: expected a list 'context' of texts such as '0-A: hello', a 'speaker'"
WITHOUT = ":2: a dialogue without utterances in a list 'utts'; remove it"


def test_damage_is_named_with_its_place(tmp_path):
    first, second, *_ = references()
    for key, value in (
        ("context", "A: x"), ("speaker", "C"), ("responses", ["", "<s> </s>"]), ("responses", []),
        ("responses", [3]), ("responses", "yes"), ("context", ["hello"]), ("context", [7]),
    ):  # fmt: skip
        path = write_references(tmp_path, [first, second | {key: value}])
        with pytest.raises(UserError, match=f"{path}: {EXPECTED}"):
            read_references(path)
    for text in ("", "{", "{}", "[]", "[3]"):
        path.write_text(text)
        with pytest.raises(UserError, match=f"{path}: "):
            read_references(path)
    path.unlink()
    with pytest.raises(UserError, match=f"{tmp_path} has no corpus: put train.jsonl, valid.jsonl"):
        read_corpus(tmp_path)
    path = write_json_lines(tmp_path) / "valid.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)[0]
    utterances = {WITHOUT: ([], [("A", "")], None, 3)}
    utterances |= {":2: .* is not": [[("A", "x"), said] for said in (("C", "y"), ("A", 5), "AB")]}
    damaged = {of: [json.dumps({"utts": u}).encode() for u in us] for of, us in utterances.items()}
    damaged[WITHOUT] += [b"{}", b"[]"]
    damaged[":2: not JSON"] = [b'{"utts": [', b'"\xff"', b"[" * 100_000]
    for message, texts in damaged.items():
        for text in texts:
            path.write_bytes(whole + text)
            with pytest.raises(UserError, match=f"{path}{message}"):
                read_corpus(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match=f"{path}: the file is empty"):
        read_corpus(tmp_path)
    path.write_text(json.dumps({"utts": [("A", "hello", [])]}))
    with pytest.raises(ValueError, match="valid has no utterance that responds"):
        write_parallel(tmp_path, tmp_path, context=3)
    path.unlink()
    with pytest.raises(UserError, match=f"{path} is missing"):
        read_corpus(tmp_path)


# hypothesis | reference → BLEU-1 to BLEU-4 of NLTK 3.10.4: sentence_bleu([reference], hypothesis,
# weights=(1/N,) * N, smoothing_function=SmoothingFunction().method7)
NLTK = {
    "i like it a lot | i like it a lot": (
        1.333333333333, 1.217161238900, 1.153887578189, 1.116747096418),
    "yeah | yeah": (1.000000000000, 0.577350269190, 0.333333333333, 0.192450089730),
    "oh yeah i know | i know what you mean yeah": (
        0.505442216427, 0.384687438591, 0.253806647011, 0.177554155865),
    "a b | c d": (0.0, 0.0, 0.0, 0.0),
}  # fmt: skip


def test_sentences_have_nltks_bleu_and_contexts_their_precision_and_recall():
    for sentences, want in NLTK.items():
        hypothesis, reference = (text.split() for text in sentences.split(" | "))
        assert sentence_bleu(hypothesis, reference) == pytest.approx(want, abs=1e-11)
    assert sentence_bleu([], ["yes"]) == [0.0] * 4
    hypotheses = [text.split() for text in ("oh yeah", "no", "well i do not know")]
    good = [text.split() for text in ("yeah", "i do not think so")]
    table = [[sentence_bleu(h, r) for r in good] for h in hypotheses]
    got = precision_recall(hypotheses, good)
    for order in range(4):
        each = [[cell[order] for cell in row] for row in table]
        precision = sum(max(row) for row in each) / 3
        recall = sum(max(row[j] for row in each) for j in range(2)) / 2
        assert got[:, order] == pytest.approx([precision, recall]) and precision != recall
    # contexts weigh equally, whatever their number of references
    one = ([["yeah"]], [["yeah"]])
    many = ([["no"]] * 4, [["yeah"], ["oh"], ["well"]])
    scores = dialogue_scores([one, many])
    assert list(scores) == [f"bleu{n}_{name}" for n in ORDERS for name in ("precision", "recall")]
    assert scores["bleu1_precision"].value == 0.5
    assert scores["bleu4_recall"].value == round(NLTK["yeah | yeah"][3] / 2, 4)


LINES_SCORED = ["T-1\tno", "P-1\t-1.0000 -3.0000", "H-0\t-2\toh yeah", "P-0\t-4.5 -0.5 -1.0"]


@pytest.mark.parametrize(("scored", "found"), [
    (LINES_SCORED, Score(4.0, "tokens:5")),  # two to the power of the mean loss
    ([*LINES_SCORED, "signature: ppl|unit:word|mass:1-2e-7"],
     Score(4.0, "tokens:5", "ppl|unit:word|mass:1-2e-7")),
    (LINES_SCORED[:2], "scored: scores 1 responses, .*responses has 2"),
    ([*LINES_SCORED[:3], "P-0\t-4.5 -0.5"], "2 scores for the 2 words and the end of .*es:1"),
    (["P-1\t-1.0 nan", LINES_SCORED[3]], "a score is not finite"),
], ids=str)  # fmt: skip
def test_perplexity_of_responses_or_what_is_lost_and_broken(scored, found, tmp_path):
    files = tmp_path / "scored", tmp_path / "responses"
    for file, rows in zip(files, (scored, ["oh yeah", "no"]), strict=True):
        file.write_text("\n".join(rows) + "\n")
    if isinstance(found, Score):
        assert response_perplexity(*files) == found
    else:
        with pytest.raises(ValueError, match=found):
            response_perplexity(*files)


def test_the_command_writes_scores_and_refuses_bad_hypotheses(tmp_path):
    """Two contexts are scored, of which the second comes first."""
    generated = ["S-1\t<other> x", "D-1\t-0.1\tno", "D-1\t-0.2\toh no"]
    generated += ["D-0\t-1\tyeah", "D-0\t-1\toh"]
    texts = {"generated": "\n".join(generated), "references": "yeah\tright\nno"}
    texts |= {"scored": "P-0\t-1.0 -3.0\nP-1\t-2.0 -2.0", "responses": "yeah\nno"}
    for name, text in texts.items():
        (tmp_path / name).write_text(f"{text}\n")

    def score(*words, code=0):
        given = [str(tmp_path / name) for name in ("generated", "references")]
        done = CliRunner().invoke(as_command(dialogue_score), [*given, *map(str, words)])
        assert done.exit_code == code, done.output
        return done

    words = ["--scored", tmp_path / "scored", "--responses", tmp_path / "responses"]
    score(*words, "--output", tmp_path / "scores.json")
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert next(iter(scores)) == "test_perplexity"
    assert scores["test_perplexity"] == {"value": 4.0, "signature": "tokens:4"}
    assert scores["bleu1_recall"]["value"] == 0.75  # "right" is nobody's response
    said = score("--scored", tmp_path / "scored", code=2).output
    assert "--scored and --responses belong together" in said
    with (tmp_path / "references").open("a") as file:
        file.write("one more\n")
    said = "2 hypotheses for 3 inputs; the first input without one is line 3"
    assert said in score(code=2).output


NAME = "switchboard"
SMALL = """corpus.vocab_size=64 encoder_embed_dim=16 encoder_hidden_size=16 decoder_embed_dim=16
    decoder_hidden_size=16 decoder_out_embed_dim=16 head_components=2 max_epoch=2
    generate.max_len_b=5""".split()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_recipe_scores_responses_and_scores_only_changed_ones_again(tmp_path):
    folder = tmp_path / "whole run"  # a space in every path
    write_json_lines(folder / "data")
    write_references(folder / "data")
    words = ["--data", folder / "data", "--exp-dir", folder / "exp", "--conf", "mos"]
    command = recipe(NAME, *words, "--context", 2, settings=SMALL)
    result, run_dir = run(command), folder / "exp" / NAME / "mos"
    assert stages_done(result) == [0, 1, 2, 3, 4, 5, 6]
    record = json.loads((run_dir / "results.json").read_text())
    names = [f"bleu{n}_{kind}" for n in (1, 2, 3, 4) for kind in ("precision", "recall")]
    assert list(record["metrics"]) == ["test_perplexity", *names]
    texts = (run_dir / "text" / "test.context").read_text().splitlines()
    assert {line.count("<self>") + line.count("<other>") for line in texts} == {1, 2}
    assert record["config"]["train"]["arch"] == "lstm_mos"
    perplexity = record["metrics"]["test_perplexity"]
    assert 1 < perplexity < 64
    assert result.stdout.splitlines()[-1].startswith(f"test perplexity {perplexity} ")
    responses = (run_dir / "text" / "test.response").read_text().splitlines()
    tokens = sum(len(line.split()) + 1 for line in responses)
    assert record["signature"] == f"tokens:{tokens}"
    assert f"|n:{tokens}|mass:1" in record["certificates"]["test_perplexity"]
    contexts = len(responses)
    assert record["signatures"]["bleu4_recall"] == (
        f"order:4|smooth:nltk-method7|contexts:{contexts}|hypotheses:{5 * contexts}"
        f"|references:{3 * contexts}"
    )
    ledger, counted = record["ledger"], {"sentences": contexts, "tokens": tokens}
    assert ledger["generate"]["test.response"]["out"] == counted  # the references, scored
    assert ledger["generate"]["test1.response"]["out"]["sentences"] == contexts
    assert ledger["evaluate"]["test.response"]["out"] == counted
    again = run(command)
    assert stages_done(again) == [] and again.stdout == result.stdout
    assert stages_done(run([*command, "--set", "generate.nbest=2"])) == [5, 6]


def test_a_corpus_is_required_and_read_with_and_without_references(tmp_path):
    run_dir, data = tmp_path / "exp" / NAME / "mos", tmp_path / "data"
    accept(NAME, "mos", run_dir, SMALL)
    command = recipe(NAME, "--exp-dir", tmp_path / "exp", "--stop-stage", 1, settings=SMALL)
    refused(command, "--data DIR is required")
    data.mkdir()
    command += ["--data", str(data)]
    said = refused(command, f"highrank: {data} has no corpus: put train.jsonl, valid.jsonl")
    assert "configuration mos" not in said  # before its slow check
    write_json_lines(data, corpus() | {"valid": [{"utts": []}]})
    refused(command, f"{data / 'valid.jsonl'}:1: a dialogue without utterances")
    text = run_dir / "text"
    assert not text.exists()
    write_json_lines(data)
    assert stages_done(run(command)) == [0, 1]
    assert (text / "test1.references").read_text() == (text / "test.response").read_text()
    write_references(data)
    assert stages_done(run(command)) == [0, 1]
    assert "\t" in (text / "test1.references").read_text()
