"""The recipe for dialogues: fifty invented ones from the corpus to the scores; bad corpora."""

import json

import pytest

from highrank_plugins.training.configuration import load
from tests.dialogue_corpus import corpus, write_json_lines, write_references
from tests.recipes.running import RECIPES, accept, recipe, run, stages_done

NAME = "switchboard"
SMALL = """corpus.vocab_size=64 encoder_embed_dim=16 encoder_hidden_size=16 decoder_embed_dim=16
    decoder_hidden_size=16 decoder_out_embed_dim=16 head_components=2 max_epoch=2
    generate.max_len_b=5""".split()


@pytest.fixture
def start(tmp_path):
    """Run stages 0 and 1 on the corpus in `data`."""
    run_dir = tmp_path / "exp" / NAME / "mos"
    accept(NAME, "mos", run_dir, SMALL)

    def start(*arguments: object, code: int = 0):
        words = ["--exp-dir", tmp_path / "exp", "--stop-stage", 1]
        return run(recipe(NAME, *words, *arguments, settings=SMALL), code)

    start.data, start.text = tmp_path / "data", run_dir / "text"
    return start


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Run the recipe, and return the output and its folder."""
    folder = tmp_path_factory.mktemp("whole run")  # a space in every path
    write_json_lines(folder / "data")
    write_references(folder / "data")

    def whole(*changes: str):
        words = ["--data", folder / "data", "--exp-dir", folder / "exp", "--conf", "mos"]
        words += ["--context", 2]
        return run(recipe(NAME, *words, settings=[*SMALL, *changes]))

    whole.first, whole.run_dir = whole(), folder / "exp" / NAME / "mos"
    return whole


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("switchboard")
class TestWholeRun:
    """Run the recipe from the corpus to the scores."""

    def test_the_recipe_scores_responses(self, whole):
        assert stages_done(whole.first) == [0, 1, 2, 3, 4, 5, 6]
        record = json.loads((whole.run_dir / "results.json").read_text())
        names = [f"bleu{n}_{kind}" for n in (1, 2, 3, 4) for kind in ("precision", "recall")]
        assert list(record["metrics"]) == ["test_perplexity", *names]
        texts = (whole.run_dir / "text" / "test.context").read_text().splitlines()
        speakers = {line.count("<self>") + line.count("<other>") for line in texts}
        assert speakers == {1, 2}
        assert record["config"]["train"]["arch"] == "lstm_mos"
        perplexity = record["metrics"]["test_perplexity"]
        assert 1 < perplexity < 64
        assert whole.first.stdout.splitlines()[-1].startswith(f"test perplexity {perplexity} ")
        # every word and every context counts
        responses = (whole.run_dir / "text" / "test.response").read_text().splitlines()
        tokens = sum(len(line.split()) + 1 for line in responses)
        assert record["signature"] == f"tokens:{tokens}"
        assert f"|n:{tokens}|mass:1" in record["certificates"]["test_perplexity"]
        contexts = len(responses)
        assert record["signatures"]["bleu4_recall"] == (
            f"order:4|smooth:nltk-method7|contexts:{contexts}|hypotheses:{5 * contexts}"
            f"|references:{3 * contexts}"
        )
        ledger = record["ledger"]
        counted = {"sentences": contexts, "tokens": tokens}
        assert ledger["generate"]["test.response"]["out"] == counted  # the references, scored
        assert ledger["generate"]["test1.response"]["out"]["sentences"] == contexts
        assert ledger["evaluate"]["test.response"]["out"] == counted

    def test_only_changed_hypotheses_are_scored_again(self, whole):
        again = whole()
        assert stages_done(again) == []
        assert again.stdout == whole.first.stdout
        changed = whole("generate.nbest=2")
        assert stages_done(changed) == [5, 6]


def test_a_corpus_with_and_without_references_is_accepted(start):
    write_json_lines(start.data)
    result = start("--data", start.data)
    assert stages_done(result) == [0, 1]
    assert (start.text / "test1.references").read_text() == (
        (start.text / "test.response").read_text()
    )
    write_references(start.data)
    assert stages_done(start("--data", start.data)) == [0, 1]
    assert "\t" in (start.text / "test1.references").read_text()


def test_a_corpus_is_required_and_a_bad_one_is_named(start):
    assert "--data DIR is required" in start(code=2).stderr
    start.data.mkdir()
    said = start("--data", start.data, code=2).stderr
    assert f"highrank: {start.data} has no corpus: put train.jsonl, valid.jsonl" in said
    assert "configuration mos" not in said  # before its slow check
    write_json_lines(start.data, corpus() | {"valid": [{"utts": []}]})
    said = start("--data", start.data, code=2).stderr
    assert f"{start.data / 'valid.jsonl'}:1: a dialogue without utterances" in said
    assert not start.text.exists()


@pytest.mark.parametrize("conf", ["softmax", "moc", "mos"])
def test_configurations_differ_in_the_head_alone(conf):
    folder = RECIPES / NAME / "conf"
    base, configuration = load(folder / "base.yaml"), load(folder / f"{conf}.yaml")
    own = configuration.train.items() - base.train.items()
    assert dict(own)["arch"] == f"lstm_{conf}"
    assert {name for name, _ in own} <= {"arch", "head_components"}
    assert configuration.generate == base.generate
