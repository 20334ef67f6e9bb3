"""Test results/perplexity.py: logs and files of `highrank measure` become scores of a record."""

import json

import pytest

from highrank_plugins.common.names import Score
from highrank_plugins.data.binarising import number, write_dictionary, write_split
from highrank_plugins.measures import all_measures
from highrank_plugins.results.doubts import below_floor, is_perplexity
from highrank_plugins.results.metrics import SCORES
from highrank_plugins.results.perplexity import (
    UNIGRAM,
    before_finetuning,
    of_text,
    read_eval_lm,
    read_measures,
)
from highrank_plugins.results.summary import read_scores


def similarity(rho, used, missing):
    return {"spearman": rho, "used": used, "missing": missing}


ADAPTED = {"metrics": {"perplexity": 47.691}, "tokens": 82430}
RESULTS = {
    "spectrum": {
        "contexts": 40, "words": 12, "dtype": "float32", "method": "gram", "press_rank": 9,
        "effective_rank": {"0.001": 2, "0.0001": 4},
    },
    "kld": {"contexts": 40, "sampled": {"mean": 4.5, "pairs": 1000}, "all_pairs": None},
    "predictions": {"tokens": 100, "entropy": 1.25, "top_k_share": {"1": 0.25, "5": 0.5}},
    "retention": {"tokens": 90, "whole": 0.75},
    "word_similarity": {"benchmarks": {
        "/there/MEN.txt": similarity(0.5, 30, 2), "/there/RW.txt": similarity(None, 1, 50),
        "/there/WS.txt": similarity(-0.1, 10, 0),
    }},
    "dynamic_eval": ADAPTED, "cache_eval": ADAPTED,
}  # fmt: skip


def test_every_measure_becomes_scores(tmp_path):
    for name, result in RESULTS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    matrix = "contexts:40|words:12|dtype:float32"
    found = read_measures(tmp_path, "test")
    mean = Score(pytest.approx((30 * 0.5 - 10 * 0.1) / 40), "spearman|benchmarks:2|used:40")
    assert found == {
        "test_dynamic_perplexity": Score(47.69, "tokens:82430|eval:dynamic"),
        "test_cache_perplexity": Score(47.69, "tokens:82430|eval:cache"),
        "test_rank": Score(9, f"press|{matrix}|method:gram"),
        "test_effective_rank_0.001": Score(2, f"eps:0.001|{matrix}|method:gram"),
        "test_effective_rank_0.0001": Score(4, f"eps:0.0001|{matrix}|method:gram"),
        "test_kld": Score(4.5, "contexts:40|pairs:1000"),
        "test_top_1": Score(25.0, "tokens:100"),
        "test_top_5": Score(50.0, "tokens:100"),
        "test_entropy": Score(1.25, "tokens:100"),
        "test_retention": Score(0.75, "tokens:90"),
        "similarity_MEN": Score(0.5, "spearman|used:30|missing:2"),
        "similarity_WS": Score(-0.1, "spearman|used:10|missing:0"),
        "word_similarity": mean,
    }
    evaluated = ("sacrebleu", "chrf", "train_perplexity", "valid_perplexity", "test_perplexity")
    evaluated += ("word_perplexity", "bits_per_byte")
    assert {one.name for one in SCORES if not one.name.startswith(evaluated)} <= found.keys()
    assert read_measures(tmp_path / "valid", "valid") == {}
    whole = {"contexts": 40, "sampled": None, "all_pairs": 4.25}
    (tmp_path / "kld.json").write_text(json.dumps(whole))
    assert read_measures(tmp_path, "valid")["valid_kld"] == Score(4.25, "contexts:40|pairs:all")
    for name, result in (
        ("kld", whole | {"split": "valid"}),
        ("dynamic_eval", ADAPTED | {"options": {"split": "valid"}}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
        assert read_measures(tmp_path, "valid")
        with pytest.raises(ValueError, match=rf"{name}\.json: .*measured on valid, not on test"):
            read_measures(tmp_path, "test")
        (tmp_path / f"{name}.json").unlink()


WITH_SCORES = [name for name, measure in all_measures().items() if "scores" in vars(measure)]


@pytest.mark.parametrize("name", [*WITH_SCORES, "dynamic_eval", "cache_eval"])
@pytest.mark.parametrize("text", [b"", b"\xff", b"{}", b"[1]", b"[" * 9**5, b'{"metrics": {}}'])
def test_a_file_that_is_not_a_result_of_its_measure_is_refused(tmp_path, name, text):
    (tmp_path / f"{name}.json").write_bytes(text)
    with pytest.raises(ValueError, match=rf"{name}\.json: not a result of {name}"):
        read_measures(tmp_path, "test")


LOG = """INFO:fairseq_cli.eval_lm:Evaluated 82,430 tokens in 9.5s (8687.99 tokens/s)
INFO:fairseq_cli.eval_lm:Loss (base 2): 5.8000, Perplexity: 55.72
"""
MEANS = "loss and perplexity are means over 61,234 words and ends of lines\n"
PPL = "ppl|unit:word|ctx:stream|eos:counted|unk:counted|text:test-ab12|n:82430|mass:1+3e-7|v:0.1.0"


def test_the_results_of_eval_lm_are_read_and_part_of_one_is_refused(tmp_path):
    log = tmp_path / "before_finetuning_test.log"
    said = f"INFO:highrank_plugins.hooks.evaluation:signature: {PPL}\n"
    for text, words, mass in ((LOG, "", ""), (said + LOG + MEANS, "|words:61234", PPL)):
        log.write_text(text)
        given = f"tokens:82430|eval:static{words}", mass
        expected = {"test_perplexity": Score(55.72, *given), "test_bits": Score(5.8, *given)}
        assert read_eval_lm(log, "test") == expected
    with pytest.raises(ValueError, match=r"before_finetuning_valid\.log is missing; score"):
        before_finetuning(tmp_path)
    (tmp_path / "before_finetuning_valid.log").write_text(LOG)
    found = {name: score.value for name, score in before_finetuning(tmp_path).items()}
    assert found == {f"{of}_perplexity_before_finetuning": 55.72 for of in ("valid", "test")}
    for text, message in (
        (f"{LOG}INFO: test: this is part 1 of 2. All parts", "part 1 of 2; score the whole text"),
        (LOG.splitlines()[0], r"test\.log: fairseq-eval-lm has printed no result"),
    ):
        log.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_eval_lm(log, "test")


@pytest.mark.parametrize("per_word", [True, False])
def test_the_unigram_of_pieces_judges_no_perplexity_per_word(tmp_path, per_word):
    words = write_dictionary(tmp_path / "dict.txt", [("a", 3), ("b", 1)]) | {"</s>": 2}
    for split in ("train", "test"):
        write_split(tmp_path / split, [number(words, ["a a b"])], 6)
    for split in ("valid", "test"):
        (tmp_path / f"{split}.log").write_text(LOG + (MEANS if per_word else ""))
    assert (UNIGRAM in read_scores(tmp_path, False, tmp_path)) != per_word


@pytest.mark.parametrize("in_pieces", [True, False])
def test_models_of_pieces_are_compared_by_words_and_bytes_of_the_raw_text(tmp_path, in_pieces):
    for split in ("valid", "test"):
        log = "Evaluated 12 tokens in 1s\nLoss (base 2): 2.5, Perplexity: 5.66\n"
        (tmp_path / f"{split}.log").write_text(log)
    for folder in ("text", "data-bin", *["pieces"] * in_pieces):
        (tmp_path / folder).mkdir()
    (tmp_path / "text" / "test.txt").write_text("a bé\nc\n")
    found = read_scores(tmp_path, False, tmp_path / "data-bin")
    assert next(iter(found.items())) == ("test_perplexity", Score(5.66, "tokens:12|eval:static"))
    names = ["test_perplexity", "word_perplexity", "bits_per_byte"]
    assert (found.keys() >= {*names}) == in_pieces
    metrics = {name: score.value for name, score in found.items()}
    assert not [*below_floor({"metrics": metrics | {"test_unigram_perplexity": 30}})]
    assert [is_perplexity(name) for name in names] == [True, False, False]
    (tmp_path / "text" / "test.txt").write_text("c\n" * 7)  # another text than the scored one
    with pytest.raises(ValueError, match=r"scores 12 tokens, but .* has 14 words and ends of li"):
        of_text(tmp_path / "test.log", tmp_path / "text" / "test.txt")
