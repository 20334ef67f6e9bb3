"""Test what a table says of models that learnt little or nothing, and of what does not compare."""

import json

import pytest

from highrank_plugins.common.provenance import hardware, machine_kind
from highrank_plugins.data.binarising import number, write_dictionary, write_split
from highrank_plugins.results.perplexity import UNIGRAM, unigram_perplexity
from highrank_plugins.results.record import load_record
from tests.cli import highrank
from tests.recipes.synthetic import experiment
from tests.results.test_comparison import change, compare, write

TESTED = "| **90.00 ± 1.00** |"


@pytest.fixture
def records(tmp_path):
    """Write records of a system that is better than the softmax."""
    return [
        write(tmp_path / f"{name}-{seed}.json", value + seed, seed)
        for name, value in (("softmax", 108), ("mos", 88))
        for seed in (1, 2, 3)
    ]


def with_metrics(path, **metrics):
    change(path, metrics=json.loads(path.read_text())["metrics"] | metrics)


def refused(done, message):
    assert done.exit_code == 2 and len(done.output.splitlines()) == 1, done.output
    assert message in done.output and "\x1b" not in done.output


def test_a_claim_ends_the_last_table(records):
    last = compare(*records).output.rstrip().splitlines()[-1]
    assert last.startswith("What can be claimed, of these runs") and "mos is better than" in last
    assert last.endswith("after the adjustment). But a doubt named above may be the cause.")
    for path in records:
        with_metrics(path, **{UNIGRAM: 400})
    assert compare(*records).output.rstrip().endswith("(p < 0.05 after the adjustment).")
    change(records[0], versions={"torch": "3"})
    assert "But a difference named above" in compare(*records).output.splitlines()[-1]
    for words in (["compare", "--runs", *map(str, records[:2])], ["published", "ptb"]):
        last = highrank(*words).output.rstrip().splitlines()[-1]
        assert last.startswith("What can be claimed: not which system is better")
    # a tie has no level, and nothing is bold without a direction
    for path, value in zip(records, (108, 90, 87, 88, 89, 90), strict=True):
        with_metrics(path, latency=json.loads(path.read_text())["metrics"]["test_perplexity"])
        with_metrics(path, test_perplexity=value)
    tie = compare(*records).output.splitlines()[-1]
    assert "alone: mos is not told from softmax. But a" in tie and "p <" not in tie
    unlike = compare(*records, "--metric", "latency").output
    assert "mos is unlike softmax (p < 0.05 " in unlike and "Nothing is bold" in unlike
    assert "**" not in unlike


@pytest.mark.parametrize(("metrics", "doubt"), [
    ({UNIGRAM: 128, "test_perplexity": 128}, "test_perplexity is not below that of"),
    ({UNIGRAM: 128, "valid_perplexity": 130}, "valid_perplexity is not below that of"),
    ({UNIGRAM: 128, "test_bits": 7.01}, "test_bits is not below that of a unigram model, 7"),
    ({"test_kld": 0.009}, "test_kld is below 0.01"),
    *(({name: 4.9}, f"{name} is below 5") for name in ("sacrebleu", "BLEU", "test_bleu")),
])  # fmt: skip
def test_a_model_below_the_floor_is_named_and_not_tested(records, metrics, doubt):
    assert TESTED in compare(*records).output
    with_metrics(records[3], **metrics)  # one of three seeds
    said = compare(*records, "--metric", "test_perplexity").output
    assert "**" not in said and f"Doubtful, since {doubt}" in said
    assert "Not tested, since a model is below the floor: mos." in said
    assert "What can be claimed: nothing about which system is better" in said
    assert f"Doubtful, since {doubt}" in compare("--runs", *records).output
    notes = compare("--runs", *records, "--format", "csv").output.splitlines()[7:]
    assert len(notes) > 1 and all(line[:2] == "# " for line in notes)


def test_the_unigram_counts_the_training_text_and_records_without_are_named(records, tmp_path):
    words = write_dictionary(tmp_path / "dict.txt", [("a", 3), ("b", 1)]) | {"</s>": 2}
    write_split(tmp_path / "train", [number(words, ["a a a b"])], 6)
    write_split(tmp_path / "test", [number(words, ["a b c"])], 6)
    p = [4 / 11, 2 / 11, 1 / 11, 2 / 11]  # add one to each of six words
    wanted = (p[0] * p[1] * p[2] * p[3]) ** (-1 / 4)
    assert unigram_perplexity(tmp_path).value == pytest.approx(wanted, abs=0.005)
    (tmp_path / "shard0").mkdir()
    write_split(tmp_path / "shard0" / "train", [number(words, ["a b"])], 6)  # shards count together
    wanted = (5 / 14 * 3 / 14 * 1 / 14 * 3 / 14) ** (-1 / 4)
    assert unigram_perplexity(tmp_path).value == pytest.approx(wanted, abs=0.005)
    assert unigram_perplexity(tmp_path / "other") is None
    for path in records[:3]:
        with_metrics(path, **{UNIGRAM: 120})
    assert "No record of mos says whether its model is better" in compare(*records).output
    change(records[0], signatures={})  # of what text?
    said = "-1.json: no signature of test_perplexity, which other records have"
    refused(compare(*records), said)


@pytest.mark.parametrize(("changes", "metrics", "message"), [
    ({"config": {"corpus": {"vocab_size": 5}, "train": {}}}, {}, "cannot be compared"),
    ({"signatures": {"test_perplexity": "tokens:9"}}, {}, "cannot be compared"),
    ({}, {UNIGRAM: 50}, "below the floor; leave it out"),
])  # fmt: skip
def test_whatever_reads_several_records_refuses_what_does_not_compare(
    records, changes, metrics, message
):
    records = [path.rename(path.with_name(f"a{n}.json")) for n, path in enumerate(records)]
    for n, path in enumerate(records):
        train = {"arch": path.stem, "head_gss_c": n, "head_gss_k": n}
        change(path, config={"corpus": {"vocab_size": 9}, "train": train})
        with_metrics(path, test_rank=n)
    words = ["--y", "test_perplexity", *records]
    calls = [lambda: compare(*words), lambda: experiment("gss-grid", *records)]
    for call in calls:
        assert call().exit_code == 0
    if "config" in changes:
        changes["config"]["train"] = train
    change(records[5], **changes)
    with_metrics(records[5], **metrics)
    for call in calls:
        refused(call(), message)


@pytest.mark.parametrize(
    "metrics",
    [{"test_perplexity": -5}, {"test_ppl": 0.58}, {"sacrebleu": 250}, {"BLEU": -1}, {"chrf": 101},
     {"valid_bits": -0.1}, {"test_top_5": 500}, {"test_rank": -5}, {"test_entropy": -1},
     {"test_retention": 7}, {"word_similarity": 3}],
)  # fmt: skip
def test_impossible_scores_are_refused(records, metrics):
    with_metrics(records[3], sacrebleu=100.00000000000004, test_kld=-1e-17, latency=-5)
    load_record(records[3])
    with_metrics(records[3], **metrics)
    with pytest.raises(ValueError, match=f"mos-1.json: {next(iter(metrics))} is .* must lie in"):
        load_record(records[3])


@pytest.mark.parametrize(
    "changes",
    [{"vocabulary": "abc"}, {"config": {"corpus": {"vocab_size": 500}, "train": {"arch": "mos"}}},
     {"signatures": {"test_perplexity": "tokens:100|eval:static", "test_rank": "words:504"}}],
)  # fmt: skip
def test_perplexities_over_other_words_are_refused(records, changes):
    for path in records:
        config = {"corpus": {"vocab_size": 3000}, "train": {"arch": path.stem}}
        signatures = {"test_perplexity": "tokens:100|eval:static", "test_rank": "words:3004"}
        change(path, vocabulary="def", config=config, signatures=signatures)
    assert TESTED in compare(*records).output
    for path in records[3:]:
        change(path, **changes)
    refused(compare(*records), "cannot be compared; leave one out")
    table = compare("--runs", records[0], records[3]).output
    assert "Vocabularies differ, so perplexities do not compare" in table
    assert "claimed: nothing, since the notes" in table and "tests them" not in table


def test_processors_of_one_name_are_told_apart(records):
    one = {"cores": 1, "processor": "a", "family": "25", "model": "1", "stepping": "1", "gpus": []}
    for path in records:
        change(path, hardware=one | {"flags": ["avx2"]})
    assert "kind of processor" not in compare(*records).output
    change(records[0], hardware=one | {"flags": ["avx2", "avx512f"]})
    assert "not run on one kind of processor" in compare(*records).output
    assert machine_kind({"processor": "a"}) == "" and "flags" in hardware()


# changes of a record, or of its text
@pytest.mark.parametrize("changes", [
    {"seeds": 5}, {"seeds": [10**400]}, {"hardware": {"gpus": 7, "cores": 1}},
    {"config": {"train": {"arch": ["a"]}}}, {"metrics": {"test_perplexity": 10**400}},
    {"metrics": {"test_perplexity": True}}, {"metrics": {"test_perplexity": 1e308}},
    {"signature": "\x1b]0;x\x07"}, {"data": "\x9b"}, {"seeds": []}, {"command": "\ud800"},
    {"train": {"parameters": -5, "updates": 1, "words_per_second": 1}},
    {"finetune": {"train": {"updates": -1}}},
    ('"seeds"', '"seeds": [1], "seeds"'),  # a key of the record twice
    ('"test_perplexity"', '"test_perplexity": 3, "test_perplexity"'),  # one within it
    ('"processor": "a"', '"processor": "\\udcff"'),  # half of a character
])  # fmt: skip
def test_a_damaged_record_is_refused_with_one_line(records, changes):
    if isinstance(changes, dict):
        change(records[3], **changes)
    else:
        text = records[3].read_text()
        assert changes[0] in text
        records[3].write_text(text.replace(*changes, 1))
    published = highrank("published", "ptb", "--results", str(records[3]))
    for done in (compare(*records), compare("--runs", *records), published):
        refused(done, "mos-1.json: ")


def test_a_huge_file_and_a_strange_name_are_refused_unread(tmp_path, records):
    huge = tmp_path / "mos-4.json"
    with huge.open("wb") as file:
        file.truncate(10**10)
    with pytest.raises(ValueError, match=r"mos-4\.json: 10\.0 GB"):
        load_record(huge)
    refused(compare(records[0].rename(tmp_path / "a\x1b[2J-1.json")), "\\x1b[2J-1.json: its name")


def test_systems_that_did_not_train_are_named_and_tested_only_where_that_says_something(records):
    """A run that was best at its start is one number; a baseline may be such."""
    cost = {"updates": 9, "words_per_second": 1}
    change(records[3], train=cost | {"epochs": 3, "valid_loss": 4, "best_valid_loss": 4})
    said = compare(*records).output
    assert "was still improving at the last epoch: mos." in said and TESTED in said
    assert "No record says whether its model is better than a unigram model" in said
    start = {"best_valid_loss": 4.0, "start_valid_loss": 4.0}
    for path in records:
        change(path, train=cost | (start if path.name == "mos-2.json" else {}))
    found = compare(*records)
    assert "Not tested, since a run was best before its first update: mos." in found.output
    assert "**" not in found.output
    for path in records:
        change(path, train=cost | (start if "softmax" in path.name else {}))
    assert "**" in compare(*records).output


@pytest.mark.parametrize(("words", "why"), [
    (["softmax=57:-.1:10", "mos=56,55"], "an SD of 0 or more and two runs or more"),
    (["softmax=1:1e308:3", "mos=2:1e308:3"], "softmax=1:1e308:3: expected numbers"),
    (["softmax=-5,1", "mos=1,2", "--metric", "test_ppl"], "softmax: test_ppl is"),
    (["softmax=57,58"], "softmax=57,58: give numbers of a baseline, then of other systems"),
    (["softmax=57,58", "mos=56,55", "--alpha", "0"], "alpha"),
])  # fmt: skip
def test_wrong_numbers_are_refused_in_a_line(words, why):
    found = compare(*words)
    assert found.exit_code == 2 and why in found.output


def test_a_system_that_failed_to_train_does_not_widen_what_the_others_would_find(tmp_path):
    values = {"softmax": (60.0, 60.2, 60.4), "mos": (58.0, 58.2, 58.4), "mixtape": (60, 90, 400)}
    paths = [
        write(tmp_path / f"{name}-{seed}.json", value, seed)
        for name, own in values.items()
        for seed, value in enumerate(own, 1)
    ]
    least = "3 seeds would find a true difference of 0.75 in 80 % of studies, but for mixtape"
    assert least in compare(*paths).output
