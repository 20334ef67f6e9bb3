"""A language-model recipe from words to perplexities: killed in training, resumed, finetuned,
evaluated in every way, and repeated."""

import json
import re

import pytest

from tests.recipes.running import kill_when, recipe, refused, run, stages_done
from tests.stream_corpus import write_text

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("language_model")]
SMALL = """corpus.vocab_size=12 corpus.other_text=true bptt=5 batch_size=2 eval_streams=2 lr=2
    decoder_embed_dim=8 decoder_hidden_size=8 decoder_last_hidden_size=8 max_epoch=3 asgd_at_epoch=1
    finetune.asgd_at_epoch=0 finetune.nonmono_stop=true finetune.nonmono=0
    spectrum.tokens=40 kld.tokens=40 retention.tokens=40
    cache_eval.theta=0.5 cache_eval.lambda=0.1 cache_eval.window=10
    dynamic_eval.lr=0.001 dynamic_eval.lambda=0.01 dynamic_eval.eps=0.001""".split()
METRICS = """test_perplexity valid_perplexity train_perplexity valid_perplexity_before_finetuning
    test_perplexity_before_finetuning test_dynamic_perplexity test_cache_perplexity test_rank
    test_impossible_nats test_kld test_top_5 test_retention word_similarity
    valid_dynamic_perplexity valid_cache_perplexity valid_rank valid_kld""".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("language model")  # a space in every path


@pytest.fixture(scope="module")
def start(folder):
    data = folder / "data"
    data.mkdir()
    write_text(data)
    pairs = folder / "pairs"
    pairs.mkdir()
    (pairs / "animals.txt").write_text("cat dog 9\ntree house 2\nDog house 4\ncat horse 7\n")
    words = ["--data", data, "--scale", "small", "--conf", "mos", "--exp-dir", folder / "exp"]
    words += ["--word-pairs", pairs, "--splits", "train,valid,test"]
    words += ["--measured", "valid,test"]
    return recipe("ptb", *words, settings=SMALL)


@pytest.fixture(scope="module")
def run_dir(folder):
    return folder / "exp" / "ptb" / "small" / "mos"


@pytest.fixture(scope="module")
def killed(start, run_dir):
    kill_when(start, lambda: run_dir / "train" / "checkpoint_last.pt")


@pytest.fixture(scope="module")
def starts(folder):
    """Return the purpose of each start of Python, one line each."""
    (folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        "with open(os.environ['STARTS'], 'a') as file:\n"
        "    print(*sys.orig_argv[1:4], file=file)\n"
    )
    return folder / "starts"


@pytest.fixture(scope="module")
def finished(killed, start, starts):
    result = run(start, PYTHONPATH=str(starts.parent), STARTS=str(starts))
    return result


@pytest.fixture(scope="module")
def record(finished, run_dir):
    return json.loads((run_dir / "results.json").read_text())


def test_training_resumes_after_the_kill_and_finetuning_averages_at_once(finished, run_dir, record):
    assert stages_done(finished) == [3, 4, 5, 6]
    assert "Loaded checkpoint" in (run_dir / "train" / "train.log").read_text()
    assert record["train"]["epochs"] == 3
    words = (run_dir / "text" / "train.txt").read_text().split()
    assert len(set(words)) == 12 + 1 and "<unk>" in words  # rare words
    command = (run_dir / "finetune" / "command.sh").read_text()
    assert "--finetune-from-model" in command and "--nonmono-stop" in command
    assert "averaging the weights from epoch 1 on" in (run_dir / "finetune/train.log").read_text()
    last = finished.stdout.splitlines()[-1]
    assert last == f"test perplexity {record['metrics']['test_perplexity']} {record['signature']}"


def test_python_is_started_for_work_and_three_times_for_plumbing(finished, starts):
    commands = re.findall(r"/highrank (\w+ \S+)", starts.read_text())
    work = [command for command in commands if command.split()[0] in ("measure", "evaluate")]
    assert len(work) == 2 * 6 + 1  # measures of two texts, and similarities of words
    assert sorted(set(commands) - set(work)) == [
        *("model best-checkpoint", "record --scores", "train configure")
    ]
    assert len(commands) - len(work) == 3


def test_every_perplexity_and_measure_is_in_the_record(run_dir, record):
    first = (run_dir / "evaluate" / "before_finetuning_test.sh").read_text()
    assert "/train/checkpoint_best.pt" in first
    assert record["train"]["parameters"] > 0 and record["train"]["seconds_per_epoch"] > 0
    metrics = record["metrics"]
    assert {*METRICS} <= metrics.keys()
    assert metrics["valid_kld"] != metrics["test_kld"]
    assert metrics["valid_perplexity"] <= metrics["valid_perplexity_before_finetuning"]
    # the text's words are drawn in a pattern: any model that has learned is below their number
    assert 1 < metrics["test_perplexity"] < 13
    assert 2 <= metrics["test_rank"] <= 17  # classes, with <s> and <pad>
    assert metrics["test_kld"] > 0 and 100 * 5 / 17 < metrics["test_top_5"] <= 100
    assert 0 < metrics["test_retention"] <= 1
    used, missing = map(int, re.findall(r"\d+", record["signatures"]["similarity_animals"]))
    assert used >= 2 and missing >= 1 and used + missing == 4  # some words are rare, one unheard of
    assert record["signature"].startswith("tokens:")


def test_the_ledger_counts_lines_and_tokens_of_scores_and_measures(record):
    ledger = record["ledger"]
    for split in ("valid", "test"):
        whole = ledger["data-bin"][split]["out"]
        assert ledger["evaluate"][split]["out"] == whole
        unused = {"after --tokens": {"tokens": whole["tokens"] - 40}}
        for name in ("spectrum", "kld", "retention"):
            assert ledger[name][split]["left out"] == unused
        for name in ("dynamic_eval", "cache_eval"):
            assert ledger[name][split]["out"] == whole


def test_a_finetuned_run_without_its_first_checkpoint_is_refused(finished, start, run_dir):
    first = run_dir / "train" / "checkpoint_best.pt"
    kept = first.rename(first.with_suffix(".kept"))
    try:
        for words in ([], ["--stage", "5"], ["--stage", "7"]):
            refused([*start, *words], f"{first} is missing: finetuning starts from it")
    finally:
        kept.rename(first)


def test_a_finished_recipe_repeats_only_changed_perplexities(finished, start, run_dir):
    """Perplexities are in logs, which the digests of stages leave out."""
    assert stages_done(run(start)) == []
    with (run_dir / "evaluate" / "test.log").open("a") as log:
        log.write("another line\n")
    assert stages_done(run(start)) == [6]


SPLITS = ("valid", "valid,test,tset", "", "train, valid,test")


@pytest.mark.parametrize(("word", "message"), [
    ("--conf=none", "/conf/small/none.yaml: no such configuration"),
    ("--conf=small/none", "/conf/small/none.yaml: no such configuration"),
    ("--scale=tiny", "--scale 'tiny': choose full or small"),
    *((f"--splits={of}", f"--splits '{of}': expected valid,test or train") for of in SPLITS),
    ("--measured=train", "--measured 'train': expected test or valid,test"),
    ("--word-pairs=.", "--word-pairs .: no *.txt there"),
])  # fmt: skip
def test_wrong_options_are_refused(tmp_path, word, message):
    words = ["--exp-dir", tmp_path / "exp", "--data", tmp_path, "--scale", "small", word]
    refused(recipe("ptb", *words), message)
    assert not (tmp_path / "exp").exists()
