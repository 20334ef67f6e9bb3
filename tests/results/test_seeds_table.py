"""Test results/seeds_table.py."""

import json

import pytest
from scipy.stats import ttest_ind

from highrank_plugins.results.seeds_table import seeds_table

RUNS = {"mos": [101.5, 102.25, 100.5], "softmax": [110.0, 111.5, 110.75], "gss": [109.0]}


@pytest.fixture
def records(tmp_path):
    paths = []
    for system, values in RUNS.items():
        for seed, value in enumerate(values, start=1):
            record = {
                "metrics": {"test_perplexity": value, "valid_perplexity": value + 4},
                "train": {"updates": 10, "words_per_second": 1000 * seed},
                "hardware": {"cores": 1},
                "versions": {"torch": "2"},
                "git": None,
            }
            paths.append(tmp_path / f"{system}-{seed}.json")
            paths[-1].write_text(json.dumps(record))
    return paths


def test_mean_deviation_and_test_of_each_system(records):
    head, line, *rows = seeds_table(records, "test_perplexity", "softmax").splitlines()
    assert head == (
        "| system | seeds | valid ppl | test ppl | p (test ppl) | words/s in training |"
    )
    assert line == "|---|---|---|---|---|---|"
    p = ttest_ind(RUNS["mos"], RUNS["softmax"]).pvalue
    assert rows == [
        f"| mos | 3 | 105.42 ± 0.88 | 101.42 ± 0.88 | {p:.2g} | 2,000 |",
        "| softmax | 3 | 114.75 ± 0.75 | 110.75 ± 0.75 | – | 2,000 |",
        "| gss | 1 | 113.00 | 109.00 | – | 1,000 |",
    ]


def test_an_unknown_metric_is_named(records):
    with pytest.raises(ValueError, match="'bleu'; there are: valid_perplexity, test_perplexity"):
        seeds_table(records, "bleu", "softmax")


@pytest.mark.parametrize(
    ("name", "message"),
    [("mos-plif.json", "SYSTEM-SEED.json"), ("more/mos-1.json", "another file is mos-1 too")],
)
def test_files_that_are_no_further_seed_are_refused(records, tmp_path, name, message):
    other = tmp_path / name
    other.parent.mkdir(exist_ok=True)
    other.write_text(records[0].read_text())
    with pytest.raises(ValueError, match=message):
        seeds_table([*records, other], "test_perplexity", "softmax")


def test_no_record_is_named(tmp_path):
    file = tmp_path / "mos-1.json"
    file.write_text("{}")
    with pytest.raises(ValueError, match=r"mos-1\.json"):
        seeds_table([file], "test_perplexity", "softmax")


def test_records_of_recipes_are_named_by_their_folders(records, tmp_path):
    paths = []
    for folder, record in zip(
        ["mos-1", "mos-2", "softmax"], records[:2] + records[3:4], strict=True
    ):
        paths.append(tmp_path / folder / "results.json")
        paths[-1].parent.mkdir()
        paths[-1].write_text(record.read_text())
    rows = seeds_table(paths, "test_perplexity", "softmax").splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [["| mos", "2"], ["| softmax", "1"]]


def test_another_baseline(records):
    rows = seeds_table(records, "test_perplexity", "mos").splitlines()[2:]
    p = ttest_ind(RUNS["softmax"], RUNS["mos"]).pvalue
    assert rows[0].split(" | ")[4] == "–" and rows[1].split(" | ")[4] == f"{p:.2g}"
