"""Tables of single runs, and the numbers that the documents print."""

import json
import re
from pathlib import Path

import pytest

from highrank_plugins.reports.comparisons import runs_table
from highrank_plugins.reports.tables import to_markdown

DOCS = Path(__file__).parents[2] / "docs"
STUDIES = sorted(folder for folder in (DOCS / "records").iterdir() if folder.is_dir())


def results_table(paths):
    return to_markdown([runs_table(paths)])


def write_record(path: Path, bleu: float) -> Path:
    record = {
        "metrics": {"sacrebleu": bleu, "chrf": 50.126}, "hardware": {"cores": 2},
        "train": {"updates": 1900.0, "words_per_second": 1889.3}, "versions": {"torch": "2.13.0"},
        "git": {"revision": "0123456789abcdef", "modified": False},
    }  # fmt: skip
    path.write_text(json.dumps(record))
    return path


def test_the_table_has_a_row_per_record(tmp_path):
    paths = [write_record(tmp_path / f"{name}.json", bleu) for name, bleu in [("a", 30), ("b", 31)]]
    rows = results_table(paths).splitlines()
    assert len(rows) == 6 and rows[5].startswith("What can be claimed: not which system is better")
    assert rows[2] == "| a | 30.00 | 50.13 | 1,900 | 1,889 | 2 | 2.13.0 | 012345678 |"
    assert rows[3].startswith("| b | 31.00 |")


def test_parameters_and_seconds_per_epoch_have_columns_if_a_record_has_them(tmp_path):
    paths = [write_record(tmp_path / f"{name}.json", 30) for name in "ab"]
    record = json.loads(paths[0].read_text())
    record["train"] |= {"parameters": 1234567, "seconds_per_epoch": 61.5}
    paths[0].write_text(json.dumps(record))
    rows = results_table(paths).splitlines()
    assert " | parameters | s/epoch | updates | " in rows[0]
    assert " | 1,234,567 | 62 | 1,900 | " in rows[2] and " | – | – | 1,900 | " in rows[3]


def test_runs_with_equal_file_names_get_distinct_names(tmp_path):
    paths = [tmp_path / name / "results.json" for name in ("mos", "softmax")]
    for bleu, path in enumerate(paths):
        path.parent.mkdir()
        write_record(path, bleu)
    rows = results_table(paths).splitlines()[2:4]
    assert [row.split(" | ")[0] for row in rows] == ["| mos", "| softmax"]


def test_a_run_given_twice_is_refused(tmp_path):
    run = {"config": {"train": {"arch": "a"}}, "seeds": [1]}
    paths = [write_record(tmp_path / f"{name}.json", 30) for name in ("a", "b", "c")]
    for path, seed in zip(paths, (1, 2, 1), strict=True):
        path.write_text(json.dumps(json.loads(path.read_text()) | run | {"seeds": [seed]}))
    assert len(results_table(paths[:2]).splitlines()) == 6
    with pytest.raises(ValueError, match=r"c\.json and .*a\.json are of one configuration and "):
        results_table(paths)


def test_the_scores_in_the_quickstart_come_from_records():
    """Each `sacreBLEU <score> <signature>` of the page is the last line of a recorded run."""
    page = (DOCS / "start" / "quickstart.md").read_text()
    records = [json.loads(path.read_text()) for path in DOCS.glob("records/*/*.json")]
    lines = {
        f"sacreBLEU {r['metrics']['sacrebleu']} {r['signature']}"
        for r in records
        if "sacrebleu" in r["metrics"]
    }
    found = re.findall(r"sacreBLEU [\d.]+ nrefs[^\s`]+", page)
    assert found and set(found) <= lines
