"""The recipe for dialogues: fifty invented ones from the corpus to the scores; bad corpora."""

import json

import pytest

from highrank_plugins.training.configuration import load
from tests.dialogue_corpus import corpus, write_json_lines, write_references
from tests.recipes.running import RECIPES, accept, recipe, refused, run, stages_done

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
    # every word and every context counts
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


def test_configurations_differ_in_the_head_alone():
    folder = RECIPES / NAME / "conf"
    base = load(folder / "base.yaml")
    for conf in ("softmax", "moc", "mos"):
        configuration = load(folder / f"{conf}.yaml")
        own = configuration.train.items() - base.train.items()
        assert dict(own)["arch"] == f"lstm_{conf}"
        assert {name for name, _ in own} <= {"arch", "head_components"}
        assert configuration.generate == base.generate
