"""The recipes of WikiText-2, One Billion Word and text8 from invented corpora to their results."""

import json
import math
import re

import pytest

from tests.data.corpora import made
from tests.data.test_archives import write
from tests.recipes.running import RECIPES, accept, recipe, run, stages_done

SMALL = {"corpus.other_text": "true", "decoder_embed_dim": 8, "decoder_hidden_size": 8,
         "decoder_last_hidden_size": 8, "bptt": 8, "batch_size": 4, "eval_streams": 2,
         "max_epoch": 2, "log_interval": 1}  # fmt: skip


def settings(**changes: object) -> list[str]:
    return [f"{name}={value}" for name, value in (SMALL | changes).items()]


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
@pytest.mark.timeout(900)
def test_wikitext2_counts_empty_lines(tmp_path):
    folder, conf = tmp_path / "a folder", "parthiban2021/mos_et"  # a space in every path
    data = made.wikitext2(folder / "wt2")
    result, run_dir = start(folder, "wikitext2", conf, data, asgd_at_epoch=1)
    lines = (run_dir / "text" / "test.txt").read_text().split("\n")[:-1]
    assert lines[0] == ""
    tokens = sum(len(line.split()) + 1 for line in lines)
    assert results(run_dir)["signature"].startswith(f"tokens:{tokens}|")
    assert stages_done(result) == [1, 2, 3, 5, 6]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_one_billion_word_trains_on_one_shard_per_epoch(tmp_path):
    data = made.one_billion(tmp_path / "1b")
    changes = {"corpus.vocab_size": 12, "max_epoch": len(made.SHARDS) + 1, "head_components": 2}
    result, run_dir = start(tmp_path, "one_billion_word", "yang2018/mos", data, **changes)
    log = (run_dir / "train" / "train.log").read_text()
    sizes = [int(size) for size in re.findall(r"train: (\d+) tokens in 4 streams", log)]
    assert len(set(sizes)) == len(made.SHARDS)
    assert sizes[len(made.SHARDS)] == sizes[0]  # and round again
    # 30 lines of the held-out files 20, 30 and 40
    tokens = re.search(r"test: 30 lines, ([\d,]+) tokens", result.stderr)[1].replace(",", "")
    assert results(run_dir)["signature"].startswith(f"tokens:{tokens}|")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_bits_of_text8_are_per_character(tmp_path):
    data = made.text8(tmp_path / "text8", length=2_000)
    _, run_dir = start(tmp_path, "text8", "yang2018/mos7", data, head_components=2)
    record = results(run_dir)
    assert record["signature"].startswith("tokens:100|")  # a twentieth of 2,000 characters
    metrics = record["metrics"]
    assert 2 ** metrics["test_bits"] == pytest.approx(metrics["test_perplexity"], abs=0.01)
    assert 0 < metrics["test_bits"] < math.log2(31)


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


def in_library(folder, code: str) -> str:
    """Return what code prints that uses functions of the language models' library."""
    (folder / "run.sh").write_text(f"source {RECIPES}/lib/language_modeling.sh\n{code}\n")
    return run(["bash", folder / "run.sh"]).stdout


def test_only_measures_of_a_text_are_repeated_on_the_validation_text(tmp_path):
    """The output layer alone is measured once, and what exists is not measured again."""
    code = 'run_block() { echo "$*"; touch -- "${*: -3:1}"; }; '
    code += f"out={tmp_path}; measures=(kld saturation); text_measures=(kld)\n"
    code += "measure model data; measure_valid model data; measure model data"
    assert in_library(tmp_path, code).splitlines() == [
        f"{tmp_path}/kld.sh kld --output {tmp_path}/kld.json model data",
        f"{tmp_path}/saturation.sh saturation --output {tmp_path}/saturation.json model data",
        f"{tmp_path}/valid/kld.sh kld --split valid --output {tmp_path}/valid/kld.json model data",
    ]


EVALUATE = "highrank() { echo best.pt; }; evaluate_split() { :; }; trainings=(train); data_bin=data"


def test_the_evaluation_stage_measures_the_requested_texts_and_similarity(tmp_path):
    for measured, asked in (("test", ["test"]), ("valid,test", ["test", "valid"])):
        code = f"{EVALUATE}; measure() {{ echo test; }}; measure_valid() {{ echo valid; }}\n"
        code += f"splits=valid,test; measured={measured}; evaluate"
        assert in_library(tmp_path, code).split() == asked
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "wordsim.txt").touch()
    options = "[train.user_dir]=my_layers"
    for own, given in (("", ""), (options, " --user-dir=my_layers")):
        code = f'{EVALUATE}; run() {{ echo "$@"; }}; measure() {{ :; }}; settings=({own})\n'
        code += f"splits=test; measured=test; word_pairs={tmp_path}/pairs; out=out; evaluate"
        assert in_library(tmp_path, code) == (
            "highrank measure word-similarity best.pt data "
            f"--benchmark={tmp_path}/pairs/wordsim.txt{given} --output out/word_similarity.json\n"
        )
