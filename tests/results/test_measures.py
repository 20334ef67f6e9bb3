"""Test results/perplexity.py: files of `highrank measure` become scores of a record."""

import json

import pytest

from highrank_plugins.analysis.divergence import Estimate
from highrank_plugins.analysis.predictions import Band
from highrank_plugins.common.files import plain
from highrank_plugins.common.names import Score
from highrank_plugins.measures import all_measures
from highrank_plugins.measures.kld import Divergences
from highrank_plugins.measures.predictions import Predictions
from highrank_plugins.measures.retention import Retention
from highrank_plugins.measures.spectrum import LogProbSpectrum
from highrank_plugins.measures.word_similarity import Similarity
from highrank_plugins.results.metrics import SCORES
from highrank_plugins.results.perplexity import read_measures
from highrank_plugins.results.scoring import ScoreError

SPECTRUM = LogProbSpectrum(
    contexts=40, words=12, dtype="float32", method="gram", smallest_reliable=1e-7, press_rank=9,
    effective_rank={"0.001": 2, "0.0001": 4}, spectral_entropy=1.5, spectral_decay=None,
    impossible_nats=1e-5, singular_values=[2.0, 1.0],
)  # fmt: skip
PREDICTIONS = Predictions(
    tokens=100, perplexity=3.0, nll=1.1, entropy=1.25, top_k_share={"1": 0.25, "5": 0.5},
    bands=[Band(0, None, 100, 3.0)], uncounted=None,
)  # fmt: skip
RETENTION = Retention(tokens=90, whole=0.75, quantiles={"0.5": 0.7}, batches=[0.75], first=[0])
SIMILAR = {
    "benchmarks": {
        "/there/MEN.txt": Similarity(0.5, 30, 2),
        "/there/RW.txt": Similarity(None, 1, 50),
        "/there/WS.txt": Similarity(-0.1, 10, 0),
    }
}


def write(folder, name, result):
    (folder / f"{name}.json").write_text(json.dumps(plain(result)))


def test_every_measure_becomes_scores(tmp_path):
    write(tmp_path, "spectrum", SPECTRUM)
    write(tmp_path, "kld", Divergences(40, Estimate(4.5, 0.1, 1000), None, None))
    write(tmp_path, "predictions", PREDICTIONS)
    write(tmp_path, "retention", RETENTION)
    write(tmp_path, "word_similarity", SIMILAR)
    adapted = {"metrics": {"perplexity": 47.691}, "tokens": 82430}
    write(tmp_path, "dynamic_eval", adapted)
    write(tmp_path, "cache_eval", adapted)
    matrix = "contexts:40|words:12|dtype:float32"
    assert read_measures(tmp_path, "test") == {
        "test_dynamic_perplexity": Score(47.69, "tokens:82430|eval:dynamic"),
        "test_cache_perplexity": Score(47.69, "tokens:82430|eval:cache"),
        "test_rank": Score(9, f"press|{matrix}|method:gram"),
        "test_effective_rank_0.001": Score(2, f"eps:0.001|{matrix}|method:gram"),
        "test_effective_rank_0.0001": Score(4, f"eps:0.0001|{matrix}|method:gram"),
        "test_impossible_nats": Score(1e-5, matrix),
        "test_kld": Score(4.5, "contexts:40|pairs:1000"),
        "test_top_1": Score(25.0, "tokens:100"),
        "test_top_5": Score(50.0, "tokens:100"),
        "test_entropy": Score(1.25, "tokens:100"),
        "test_retention": Score(0.75, "tokens:90"),
        "similarity_MEN": Score(0.5, "spearman|used:30|missing:2"),
        "similarity_WS": Score(-0.1, "spearman|used:10|missing:0"),
        "word_similarity": Score(
            pytest.approx((30 * 0.5 - 10 * 0.1) / 40), "spearman|benchmarks:2|used:40"
        ),
    }


def test_metrics_with_a_column_are_those_that_the_measures_compute(tmp_path):
    test_every_measure_becomes_scores(tmp_path)
    found = read_measures(tmp_path, "test")
    evaluated = ("sacrebleu", "chrf", "train_perplexity", "valid_perplexity", "test_perplexity")
    evaluated += ("word_perplexity", "bits_per_byte")
    listed = {one.name for one in SCORES if not one.name.startswith(evaluated)}
    assert listed <= found.keys()


def test_the_signature_says_that_the_mean_is_over_all_pairs(tmp_path):
    assert read_measures(tmp_path, "valid") == {}
    write(tmp_path, "kld", Divergences(40, None, 4.25, None))
    assert read_measures(tmp_path, "valid") == {"valid_kld": Score(4.25, "contexts:40|pairs:all")}


WITH_SCORES = [name for name, measure in all_measures().items() if "scores" in vars(measure)]


@pytest.mark.parametrize("name", [*WITH_SCORES, "dynamic_eval", "cache_eval"])
@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"metrics": {}}'])
def test_a_file_that_is_not_a_result_of_its_measure_is_refused(tmp_path, name, text):
    (tmp_path / f"{name}.json").write_text(text)
    with pytest.raises(ScoreError, match=rf"{name}\.json: not a result of {name}"):
        read_measures(tmp_path, "test")


@pytest.mark.parametrize(
    "content",
    [b"\xff", b"[" * 100_000, b'{"tokens": 3, "top_k_share": [], "entropy": 1}'],
    ids=["not text", "nested", "a list"],
)
def test_damaged_results_are_refused(tmp_path, content):
    (tmp_path / "predictions.json").write_bytes(content)
    with pytest.raises(ScoreError, match=r"predictions\.json: not a result of predictions"):
        read_measures(tmp_path, "test")
