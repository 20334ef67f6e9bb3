"""Test results/comparison.py and `highrank compare`: numbers, refusals and flags."""

import csv
import json
import re
from pathlib import Path

import pytest
from scipy.stats import ttest_ind

from highrank_plugins.analysis.statistics import holm
from highrank_plugins.reports.tables import Cell, Table, to_latex
from highrank_plugins.results.comparison import compare_records
from tests.cli import highrank

RUNS = {"mos": [101.5, 102.25, 100.5], "softmax": [110.0, 111.5, 110.75], "gss": [109.0, 111.0]}
SIGNATURE = "tokens:100|eval:static"


def write(path, value, seed=1, **changes):
    record = {
        "metrics": {"test_perplexity": value, "valid_perplexity": value + 4},
        "signatures": {"test_perplexity": SIGNATURE},
        "config": {"corpus": {"vocab_size": 9}, "train": {"arch": path.stem[:3], "seed": seed}},
        "seeds": [seed],
        "train": {"updates": 10, "words_per_second": 1000 * seed, "parameters": 5000},
        "hardware": {"cores": 1, "processor": "a", "gpus": []},
        "versions": {"torch": "2"},
        "git": {"revision": "0123456789abc", "modified": False},
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record | changes))
    return path


@pytest.fixture
def records(tmp_path):
    return [
        write(tmp_path / f"{system}-{seed}.json", value, seed)
        for system, values in RUNS.items()
        for seed, value in enumerate(values, start=1)
    ]


def compare(*words):
    return highrank("compare", *words)


def change(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_every_number_of_the_table_is_right(records):
    done = compare(*records, "--columns", "", "--all-tests")
    assert done.exit_code == 0, done.output
    head, _, *rows = done.output.split("\n\n")[0].splitlines()
    assert head == (
        "| system | place | seeds | test ppl | difference [95 %] | Hedges' g | p | p (Holm) "
        "| parameters | words/s in training |"
    )
    p = [ttest_ind(RUNS[name], RUNS["softmax"]).pvalue for name in ("mos", "gss")]
    adjusted = holm(p)
    cells = rows[0].strip("| ").split(" | ")
    assert cells[:4] == ["mos", "1", "3", "**101.42 ± 0.88**"]  # significantly better: bold
    assert cells[4].startswith("-9.33 [")
    assert cells[6:8] == [f"{p[0]:.2g}", f"{adjusted[0]:.2g}"]
    assert cells[8:] == ["5,000", "2,000"]
    assert rows[1] == "|" + " ——— |" * 10
    assert "**" not in rows[2] and f"| {p[1]:.2g} | {adjusted[1]:.2g} |" in rows[2]
    assert rows[3].startswith("| softmax (baseline) | 2–3 | 3 | 110.75 ± 0.75 | – |")
    # a worse system is not bold
    done = compare(*records, "--baseline", "mos", "--test", "welch", "--all-tests")
    p = ttest_ind(RUNS["softmax"], RUNS["mos"], equal_var=False).pvalue
    assert "**" not in done.output and "Welch" in done.output and f"| {p:.2g} |" in done.output
    first, other = compare(*records).output.split("\n\n| system | ")
    assert other.splitlines()[0] == "valid ppl |" and "| mos | 105.42 ± 0.88 |" in other
    assert "p (Holm)" not in first  # it is shown where nobody knows what is better
    given = compare("a=1,2", "b=5,6", "c=7,8").output
    assert "| p (Holm) |" in given and "place" not in given
    assert [line[:4] for line in given.splitlines()[2:5]] == ["| a ", "| b ", "| c "]


def test_every_writer_shows_the_numbers_and_the_line_between_groups(records, tmp_path, monkeypatch):
    lines = compare(*records, "--format", "csv").output.splitlines()
    mos, gss, softmax, *_ = csv.DictReader(line for line in lines if not line.startswith("#"))
    assert float(mos["test_perplexity mean"]) == pytest.approx(sum(RUNS["mos"]) / 3, abs=1e-12)
    assert float(mos["valid_perplexity sd"]) > 0 and mos["parameters"] == "5000.0"
    assert [mos[name] for name in ("place from", "place to", "group")] == ["1", "1", "1"]
    assert [row["group"] for row in (gss, softmax)] == ["2", "2"]
    assert 0 < float(mos["p"]) <= float(mos["p Holm"]) < 0.05
    line = next(line for line in lines if line.startswith("softmax,"))
    assert "–" not in line and ",,,,,,5000.0," in line  # an empty cell is no text
    text = compare(*records, "--format", "latex", "--columns", "").output
    assert re.search(r"\nmos & .*\n\\midrule\ngss & ", text) and text.count("midrule") == 2
    assert r"\textbf{101.42 $\pm$ 0.88}" in text and r"difference [95 \%]" in text
    signs = to_latex([Table("", ["a|b"], [[Cell("> 1,000 <")]])])
    assert r"a\textbar{}b" in signs and "$>$ 1,000 $<$" in signs
    printed = compare(*records).output
    monkeypatch.chdir(tmp_path)
    assert compare(*records, "--output", "-").output == printed and not Path("-").exists()
    done = compare(*records, "--output", tmp_path / "new" / "a.md")
    assert done.output == "" and "| mos |" in (tmp_path / "new" / "a.md").read_text()


def test_masses_are_noted_and_do_not_enter_the_comparison(records):
    assert "mass" not in compare(*records).output  # of old records
    for path, mass in zip(records, ("1+3e-7|v:1", "1-2e-6|v:2"), strict=False):
        stated = f"ppl|unit:word|ctx:stream|text:test-ab12|n:100|mass:{mass}"
        change(path, certificates={"test_perplexity": stated})
    done = compare(*records)
    note = "Σ P(x) is 1 within 2e-06 at 64 positions of each text (mass not recorded: mos, soft"
    assert done.exit_code == 0 and note in done.output
    assert compare(*records, "--format", "latex").output.isascii(), "as LaTeX takes it"
    assert "Signatures differ in v, the version of this package: 1 (mos); 2 (mos)" in done.output
    change(records[3], certificates={"test_perplexity": stated.replace("stream", "block-9")})
    assert "Signatures differ in ctx, the context of each word: " in compare(*records).output
    change(records[3], certificates={"test_perplexity": stated})
    change(records[0], certificates={"test_perplexity": stated})
    change(records[1], certificates={"test_perplexity": stated.replace("ab12", "cd34")})
    assert "has the text unit:word|text:test-cd34|n:100" in compare(*records).output


OTHERS = {"max_epoch": 3, "head_components": 4, "arch": "mos"}


@pytest.mark.parametrize(("changes", "note"), [
    ({"git": {"revision": "fff", "modified": False}}, "Revisions of the code differ: "),
    ({"git": {"revision": "0123456789abc", "modified": True}}, "Files differed from the re"),
    ({"data": "1"}, "Texts may differ, since some records have no digest of theirs: mos, soft"),
    ({"data": "1", "config": {"clean": {"x": 1}}}, "Texts or their preparation differ: mos, s"),
    ({"versions": {"torch": "3"}}, "Versions of torch differ: 2 (mos, softmax, gss); 3 (mos)."),
    ({"hardware": {"cores": 2}}, "Machines differ, so speeds do not compare: 1 × a (mos, "),
    ({"config": {"train": OTHERS}}, "train.max_epoch differs: unset (mos, softmax, gss); 3 (mos)."),
])  # fmt: skip
def test_differences_are_flagged(records, changes, note):
    assert "differ" not in compare(*records).output.replace("difference", "")
    change(records[1], **changes)
    done = compare(*records)
    assert done.exit_code == 0 and note in done.output, done.output
    assert "head_components differs" not in done.output  # a layer's option makes a system
    for path, digest in zip(records, (None, "1", "2"), strict=False):
        change(path, data=digest)
    assert "Texts or their preparation differ: mos, softmax, gss; mos" in compare(*records).output


ONE_SEED = {"config": {"train": {"arch": "mos", "seed": 1, "lr": 2}}, "seeds": [1]}


@pytest.mark.parametrize(("changes", "words", "message"), [
    (ONE_SEED, [], "or one seed of mos; each seed counts once"),
    ({"signatures": {"test_perplexity": "tokens:99"}}, [],
     "mos-2.json: test_perplexity has the signature tokens:99"),
    ({"metrics": {"valid_perplexity": 105.0}}, [],
     "mos-2.json: no test_perplexity, which other runs of mos have"),
    ({"metrics": {"test_perplexity": float("nan")}}, [], "-2.json: test_perplexity is not a n"),
    ({}, ["--metric", "test_perplexty"], "did you mean 'test_perplexity'?"),
    ({}, ["--baseline", "sofmax"], "--baseline sofmax: the systems are mos, softmax, gss; did"),
    ({}, ["."], ".: expected a file named SYSTEM-SEED.json"),
    ({}, ["mos-9.json"], "mos-9.json: not JSON"),
])  # fmt: skip
def test_what_cannot_be_compared_is_refused(
    records, tmp_path, monkeypatch, changes, words, message
):
    monkeypatch.chdir(tmp_path)
    for name in ("mos-plif.json", "mos-9.json"):
        Path(name).write_text("[" * 100_000)
    change(records[1], **changes)
    done = compare(*records, *words)
    assert done.exit_code == 2 and message in done.output


def test_a_run_counts_once_by_file_seed_settings_and_all_that_it_recorded(records, tmp_path):
    whole = json.loads(records[0].read_text())
    other = tmp_path / "other-1.json"
    config = {"corpus": {"vocab_size": 9.0}, "train": {"arch": "mos", "seed": 1}}
    timed = whole | {"train": whole["train"] | {"wall_seconds": 3}}
    for first, second in (
        (whole, whole | {"config": config, "git": None}),  # 9.0 is 9
        (timed, timed | {"config": {"train": {"arch": "x", "seed": 7}}, "seeds": [7]}),
    ):
        records[0].write_text(json.dumps(first))
        other.write_text(json.dumps(second))
        done = compare(*records, other)
        assert done.exit_code == 2 and f"{other} and {records[0]} are one run" in done.output
    assert "are one run" in compare(*records, records[0]).output
    del whole["seeds"]
    unseeded = [tmp_path / f"other-{number}.json" for number in (1, 2)]  # nobody knows their seeds
    for number, path in enumerate(unseeded):
        path.write_text(json.dumps(whole | {"config": {"train": {"arch": "x", "lr": number}}}))
    assert compare(*records, *unseeded).exit_code == 0


def test_runs_that_do_not_vary_and_single_runs_are_not_tested(tmp_path):
    same = [
        write(tmp_path / f"{name}-{seed}.json", 5.0, seed, config={"train": {"a": name, "s": seed}})
        for name, seeds in {"a": (1, 2), "b": (1, 2), "c": (1,)}.items()
        for seed in seeds
    ]
    compared = compare_records(same, baseline="a")
    assert all(system.comparison is None for system in compared.systems)
    assert compared.notes[:3] == [
        "Not tested, since a test needs two seeds of a system and of a: c.",
        "Not tested, since neither runs nor baseline vary: b.",
        "All seeds have one score: a, b. Check that their training differs.",
    ]


def test_saved_translations_are_compared_by_bootstrap(tmp_path):
    reference = [f"the cat {word} on the old mat today" for word in ("sat", "lay", "is", "was")] * 5
    texts = {"softmax": [line.replace("cat", "dog") for line in reference], "mos-1": reference}
    paths = []
    for name, lines in texts.items():
        path = tmp_path / name / "results.json"
        config = {"train": {"target_lang": "en", "arch": name}}
        write(path, 1.0, metrics={"sacrebleu": 30.0, "chrf": 2.0}, config=config)
        for part, text in {"score": lines, "text": reference}.items():
            (tmp_path / name / part).mkdir()
            (tmp_path / name / part / "test.en").write_text("\n".join(text) + "\n")
        paths.append(path)
    softmax, mos = compare_records(paths).systems
    assert softmax.paired == {} and mos.paired[1] < 0.01
    assert "paired bootstrap, p" in compare(*paths).output
    assert f",{mos.paired[1]}," in compare(*paths, "--format", "csv").output  # all digits
    assert "bootstrap" not in compare(*paths, "--metric", "chrf").output  # it tests BLEU
    (tmp_path / "mos-0").mkdir()
    path = write(tmp_path / "mos-0" / "results.json", 1.0, 0, metrics={"sacrebleu": 20.0})
    assert f" | –, {mos.paired[1]:.2g} | " in compare(*paths, path).output  # by seed
