"""Test results/perplexity.py."""

import pytest

from highrank_plugins.common.names import Score
from highrank_plugins.results.doubts import below_floor, is_perplexity
from highrank_plugins.results.perplexity import before_finetuning, of_text, read_eval_lm
from highrank_plugins.results.scoring import ScoreError
from highrank_plugins.results.summary import read_scores

LOG = """INFO:fairseq_cli.eval_lm:Evaluated 82,430 tokens in 9.5s (8687.99 tokens/s)
INFO:fairseq_cli.eval_lm:Loss (base 2): 5.8000, Perplexity: 55.72
"""


MEANS = "loss and perplexity are means over 61,234 words and ends of lines\n"


@pytest.mark.parametrize(("more", "words"), [("", ""), (MEANS, "|words:61234")])
def test_the_result_of_eval_lm_is_read(tmp_path, more, words):
    (tmp_path / "test.log").write_text(LOG + more)
    signature = f"tokens:82430|eval:static{words}"
    assert read_eval_lm(tmp_path / "test.log", "test") == {
        "test_perplexity": Score(55.72, signature),
        "test_bits": Score(5.8, signature),
    }


PPL = "ppl|unit:word|ctx:stream|eos:counted|unk:counted|text:test-ab12|n:82430"


@pytest.mark.parametrize("mass", ["|mass:1+3e-7|v:0.1.0", ""])
def test_the_signature_with_the_mass_is_read_from_the_log(tmp_path, mass):
    said = f"INFO:highrank_plugins.hooks.evaluation:signature: {PPL}{mass}\n" if mass else ""
    (tmp_path / "test.log").write_text(said + LOG)
    found = read_eval_lm(tmp_path / "test.log", "test")
    assert {score.certificate for score in found.values()} == {f"{PPL}{mass}" if mass else ""}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{LOG}INFO: test: this is part 1 of 2. All parts", "part 1 of 2; score the whole text"),
        (LOG.splitlines()[0], r"test\.log: fairseq-eval-lm has printed no result"),
    ],
)
def test_a_log_without_a_result_for_the_whole_text_is_refused(tmp_path, text, message):
    (tmp_path / "test.log").write_text(text)
    with pytest.raises(ScoreError, match=message):
        read_eval_lm(tmp_path / "test.log", "test")


def test_the_perplexity_before_finetuning_is_read(tmp_path):
    for split in ("valid", "test"):
        with pytest.raises(ScoreError, match=f"before_finetuning_{split}.log is missing; score"):
            before_finetuning(tmp_path)
        (tmp_path / f"before_finetuning_{split}.log").write_text(LOG)
    scores = before_finetuning(tmp_path)
    assert {name: score.value for name, score in scores.items()} == {
        "valid_perplexity_before_finetuning": 55.72,
        "test_perplexity_before_finetuning": 55.72,
    }


@pytest.mark.parametrize("in_pieces", [True, False])
def test_models_of_pieces_are_compared_by_words_and_bytes_of_the_raw_text(tmp_path, in_pieces):
    text, bits = "a bé\nc\n", 12 * 2.5
    for split in ("valid", "test"):
        log = "Evaluated 12 tokens in 1s\nLoss (base 2): 2.5, Perplexity: 5.66\n"
        (tmp_path / f"{split}.log").write_text(log)
    for folder in ("text", "data-bin", *["pieces"] * in_pieces):
        (tmp_path / folder).mkdir()
    (tmp_path / "text" / "test.txt").write_text(text)
    expected = {
        "test_perplexity": Score(5.66, "tokens:12"),
        "word_perplexity": Score(2.0 ** (bits / 5), "text_words:5"),
        "bits_per_byte": Score(bits / len(text.encode()), "bytes:8"),
    }
    assert of_text(tmp_path / "test.log", tmp_path / "text" / "test.txt") == expected
    found = read_scores(tmp_path, False, tmp_path / "data-bin")
    assert next(iter(found.items())) == ("test_perplexity", Score(5.66, "tokens:12|eval:static"))
    assert expected.keys() <= found.keys() if in_pieces else "word_perplexity" not in found
    metrics = {name: score.value for name, score in found.items()}
    assert not [*below_floor({"metrics": metrics | {"test_unigram_perplexity": 30}})]
    assert [is_perplexity(name) for name in expected] == [True, False, False]
    (tmp_path / "text" / "test.txt").write_text("c\n" * 13)
    with pytest.raises(ScoreError, match=r"scores 12 tokens, but .* has 13 lines"):
        of_text(tmp_path / "test.log", tmp_path / "text" / "test.txt")
