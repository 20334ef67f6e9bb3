"""The recipes of WikiText-2, One Billion Word and text8 from invented corpora to their results."""

import json
import math
import re
import subprocess

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("language models")  # a space in every path


@pytest.fixture(scope="module")
def wikitext2(folder):
    data = made.wikitext2(folder / "wt2")
    return start(folder, "wikitext2", "parthiban2021/mos_et", data, asgd_at_epoch=1)


@pytest.fixture(scope="module")
def one_billion(folder):
    data = made.one_billion(folder / "1b")
    changes = {"corpus.vocab_size": 12, "max_epoch": len(made.SHARDS) + 1, "head_components": 2}
    return start(folder, "one_billion_word", "yang2018/mos", data, **changes)


@pytest.fixture(scope="module")
def text8(folder):
    data = made.text8(folder / "text8", length=2_000)
    return start(folder, "text8", "yang2018/mos7", data, head_components=2)


def results(started) -> dict:
    _, run_dir = started
    return json.loads((run_dir / "results.json").read_text())


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("wikitext2")
def test_wikitext2_counts_empty_lines(wikitext2):
    record = results(wikitext2)
    lines = (wikitext2[1] / "text" / "test.txt").read_text().split("\n")[:-1]
    assert lines[0] == ""
    tokens = sum(len(line.split()) + 1 for line in lines)
    assert record["signature"].startswith(f"tokens:{tokens}|")
    assert stages_done(wikitext2[0]) == [1, 2, 3, 5, 6]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("one_billion_word")
def test_one_billion_word_trains_on_one_shard_per_epoch(one_billion):
    record = results(one_billion)
    log = (one_billion[1] / "train" / "train.log").read_text()
    sizes = [int(size) for size in re.findall(r"train: (\d+) tokens in 4 streams", log)]
    assert len(set(sizes)) == len(made.SHARDS)
    assert sizes[len(made.SHARDS)] == sizes[0]  # and round again
    # 30 lines of the held-out files 20, 30 and 40
    said = one_billion[0].stderr
    tokens = re.search(r"test: 30 lines, ([\d,]+) tokens", said)[1].replace(",", "")
    assert record["signature"].startswith(f"tokens:{tokens}|")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("text8")
def test_bits_of_text8_are_per_character(text8):
    record = results(text8)
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
    command = ["bash", folder / "run.sh"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


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


@pytest.mark.parametrize(("measured", "asked"), [("test", "test"), ("valid,test", "test valid")])
def test_the_evaluation_stage_measures_the_requested_texts(tmp_path, measured, asked):
    code = f"{EVALUATE}; measure() {{ echo test; }}; measure_valid() {{ echo valid; }}\n"
    code += f"splits=valid,test; measured={measured}; evaluate"
    assert in_library(tmp_path, code).split() == asked.split()


@pytest.mark.parametrize(
    ("options", "given"), [("", ""), ("[train.user_dir]=my_layers", " --user-dir=my_layers")]
)
def test_word_similarity_gets_the_user_dir_of_the_run(tmp_path, options, given):
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "wordsim.txt").touch()
    code = f'{EVALUATE}; run() {{ echo "$@"; }}; measure() {{ :; }}; settings=({options})\n'
    code += f"splits=test; measured=test; word_pairs={tmp_path}/pairs; out=out; evaluate"
    assert in_library(tmp_path, code) == (
        "highrank measure word-similarity best.pt data "
        f"--benchmark={tmp_path}/pairs/wordsim.txt{given} --output out/word_similarity.json\n"
    )
