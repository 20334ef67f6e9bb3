"""A language-model recipe from words to perplexities: killed in training, resumed, finetuned,
evaluated in every way, and repeated; each corpus in its own way."""

import json
import re
from types import SimpleNamespace

import pytest

from tests.data.corpora import made
from tests.data.test_archives import write
from tests.recipes.running import accept, kill_when, recipe, refused, run, stages_done
from tests.stream_corpus import write_text

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("language_model")]
SMALL = """corpus.vocab_size=12 corpus.other_text=true bptt=5 batch_size=2 eval_streams=2 lr=2
    decoder_embed_dim=8 decoder_hidden_size=8 decoder_last_hidden_size=8 max_epoch=3 asgd_at_epoch=1
    finetune.asgd_at_epoch=0 finetune.nonmono_stop=true finetune.nonmono=0
    spectrum.tokens=40 kld.tokens=40 retention.tokens=40
    cache_eval.theta=0.5 cache_eval.lambda=0.1 cache_eval.window=10
    dynamic_eval.lr=0.001 dynamic_eval.lambda=0.01 dynamic_eval.eps=0.001""".split()
METRICS = """test_perplexity valid_perplexity train_perplexity valid_perplexity_before_finetuning
    test_perplexity_before_finetuning test_dynamic_perplexity test_cache_perplexity test_rank
    test_kld test_top_5 test_retention word_similarity
    valid_dynamic_perplexity valid_cache_perplexity valid_rank valid_kld""".split()


STARTS = """
import os, sys
with open(os.environ['STARTS'], 'a') as file:
    print(*sys.orig_argv[1:4], file=file)
"""  # what Python was started for, one line each


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Kill a training run, and run it to its end."""
    folder = tmp_path_factory.mktemp("language model")  # a space in every path
    for name in ("data", "pairs", "starts"):
        (folder / name).mkdir()
    write_text(folder / "data")
    pairs = "cat dog 9\ntree house 2\nDog house 4\ncat horse 7\n"
    (folder / "pairs" / "animals.txt").write_text(pairs)
    (folder / "starts" / "sitecustomize.py").write_text(STARTS)
    words = ["--data", folder / "data", "--scale", "small", "--conf", "mos"]
    words += ["--exp-dir", folder / "exp", "--word-pairs", folder / "pairs"]
    words += ["--splits", "train,valid,test", "--measured", "valid,test"]
    start, run_dir = recipe("ptb", *words, settings=SMALL), folder / "exp" / "ptb" / "small" / "mos"
    kill_when(start, (run_dir / "train" / "checkpoint_last.pt").exists)
    starts = folder / "starts" / "log"
    result = run(start, PYTHONPATH=str(starts.parent), STARTS=str(starts))
    record = json.loads((run_dir / "results.json").read_text())
    return SimpleNamespace(
        start=start, run_dir=run_dir, starts=starts, result=result, record=record
    )


@pytest.mark.long
def test_training_resumes_after_the_kill_and_finetuning_averages_at_once(whole):
    run_dir, record = whole.run_dir, whole.record
    assert stages_done(whole.result) == [3, 4, 5, 6]
    assert "Loaded checkpoint" in (run_dir / "train" / "train.log").read_text()
    assert record["train"]["epochs"] == 3
    words = (run_dir / "text" / "train.txt").read_text().split()
    assert len(set(words)) == 12 + 1 and "<unk>" in words  # rare words
    command = (run_dir / "finetune" / "command.sh").read_text()
    assert "--finetune-from-model" in command and "--nonmono-stop" in command
    assert "averaging the weights from epoch 1 on" in (run_dir / "finetune/train.log").read_text()
    last = whole.result.stdout.splitlines()[-1]
    assert last == f"test perplexity {record['metrics']['test_perplexity']} {record['signature']}"
    # Python is started for work, and three times for plumbing
    commands = re.findall(r"/highrank (\w+ \S+)", whole.starts.read_text())
    work = [command for command in commands if command.split()[0] in ("measure", "evaluate")]
    assert len(work) == 2 * 6 + 1  # measures of two texts, and similarities of words
    plumbing = ["model best-checkpoint", "record --scores", "train configure"]
    assert sorted(command for command in commands if command not in work) == plumbing


@pytest.mark.long
def test_every_perplexity_and_measure_is_in_the_record_with_its_lines_and_tokens(whole):
    record = whole.record
    first = (whole.run_dir / "evaluate" / "before_finetuning_test.sh").read_text()
    assert "/train/checkpoint_best.pt" in first
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
    for split in ("valid", "test"):
        counted = record["ledger"]["data-bin"][split]["out"]
        unused = {"after --tokens": {"tokens": counted["tokens"] - 40}}
        assert record["ledger"]["kld"][split]["left out"] == unused
        assert record["ledger"]["cache_eval"][split]["out"] == counted


@pytest.mark.long
def test_a_finished_recipe_repeats_only_changed_perplexities(whole):
    """Perplexities are in logs, which the digests of stages leave out."""
    assert stages_done(run(whole.start)) == []
    with (whole.run_dir / "evaluate" / "test.log").open("a") as log:
        log.write("another line\n")
    assert stages_done(run(whole.start)) == [6]
    first = whole.run_dir / "train" / "checkpoint_best.pt"
    first.unlink()
    for words in ([], ["--stage", "5"], ["--stage", "7"]):
        refused([*whole.start, *words], f"{first} is missing: finetuning starts from it")


@pytest.mark.parametrize(("word", "message"), [
    ("--scale=tiny", "--scale 'tiny': choose full or small"),
    *((f"--splits={of}", f"--splits '{of}': expected valid,test or train")
      for of in ("valid", "valid,test,tset", "", "train, valid,test")),
    ("--word-pairs=.", "--word-pairs .: no *.txt there"),
])  # fmt: skip
def test_wrong_options_are_refused(tmp_path, word, message):
    words = ["--exp-dir", tmp_path / "exp", "--data", tmp_path, "--scale", "small", word]
    refused(recipe("ptb", *words), message)
    assert not (tmp_path / "exp").exists()


OTHERS = {"corpus.other_text": "true", "decoder_embed_dim": 8, "decoder_hidden_size": 8,
         "decoder_last_hidden_size": 8, "bptt": 8, "batch_size": 4, "eval_streams": 2,
         "max_epoch": 2, "log_interval": 1}  # fmt: skip


def settings(**changes: object) -> list[str]:
    return [f"{name}={value}" for name, value in (OTHERS | changes).items()]


def start(folder, name: str, conf: str, data, *words: object, **changes: object):
    """Run a recipe with an accepted configuration; return its result and directory."""
    run_dir = folder / "exp" / name / "run"
    accept(name, conf, run_dir, settings(**changes))
    words = ("--exp-dir", folder / "exp", "--name", "run", "--conf", conf, *words)
    given = ("--data", data) if data else ()
    return run(recipe(name, *given, *words, settings=settings(**changes))), run_dir


def results(run_dir) -> dict:
    return json.loads((run_dir / "results.json").read_text())


@pytest.mark.long
def test_every_corpus_is_trained_on_in_its_own_way(tmp_path):
    folder = tmp_path / "a folder"  # a space in every path
    # WikiText-2 counts empty lines
    data, conf = made.wikitext2(folder / "wt2"), "parthiban2021/mos_et"
    result, run_dir = start(folder, "wikitext2", conf, data, asgd_at_epoch=1)
    lines = (run_dir / "text" / "test.txt").read_text().split("\n")[:-1]
    tokens = sum(len(line.split()) + 1 for line in lines)
    assert lines[0] == "" and results(run_dir)["signature"].startswith(f"tokens:{tokens}|")
    assert stages_done(result) == [1, 2, 3, 5, 6]
    # One Billion Word trains on one shard per epoch, and round again
    changes = {"corpus.vocab_size": 12, "max_epoch": len(made.SHARDS) + 1, "head_components": 2}
    data = made.one_billion(folder / "1b")
    result, run_dir = start(folder, "one_billion_word", "yang2018/mos", data, **changes)
    log = (run_dir / "train" / "train.log").read_text()
    sizes = [int(size) for size in re.findall(r"train: (\d+) tokens in 4 streams", log)]
    assert len(set(sizes)) == len(made.SHARDS) and sizes[len(made.SHARDS)] == sizes[0]
    # 30 lines of the held-out files 20, 30 and 40
    tokens = re.search(r"test: 30 lines, ([\d,]+) tokens", result.stderr)[1].replace(",", "")
    assert results(run_dir)["signature"].startswith(f"tokens:{tokens}|")
    # bits of text8 are per character; a twentieth of 2,000 is the test text
    data = made.text8(folder / "text8", length=2_000)
    _, run_dir = start(folder, "text8", "yang2018/mos7", data, head_components=2)
    record = results(run_dir)
    metrics = record["metrics"]
    assert record["signature"].startswith("tokens:100|") and 0 < metrics["test_bits"] < 5
    assert 2 ** metrics["test_bits"] == pytest.approx(metrics["test_perplexity"], abs=0.01)


def test_an_archive_that_was_placed_by_hand_is_recorded_and_unpacked(tmp_path):
    download = tmp_path / "exp" / "ptb" / "download"
    download.mkdir(parents=True)
    text = made.ptb(tmp_path / "text")
    files = {f"./simple-examples/data/{p.name}": p.read_bytes() for p in text.iterdir()}
    write(download / "simple-examples.tgz", files)
    result, run_dir = start(tmp_path, "ptb", "yang2018/mos", None, "--stop-stage", 1)
    assert "no sha256 is published; it was recorded" in result.stderr
    assert "simple-examples.tgz" in (download / "checksums.txt").read_text()
    assert stages_done(result) == [0, 1]
    assert len((run_dir / "text" / "train.txt").read_text().splitlines()) == made.LINES["train"]
