"""The recipes of WikiText-2, One Billion Word and text8 from invented corpora to their results."""

import json
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


EVALUATE = "highrank() { echo best.pt; }; evaluate_split() { :; }; trainings=(train); data_bin=data"


def test_the_evaluation_stage_measures_the_requested_texts_and_similarity(tmp_path):
    """The output layer alone is measured once, and what exists is not measured again."""

    def in_library(code: str) -> str:
        (tmp_path / "run.sh").write_text(f"source {RECIPES}/lib/language_modeling.sh\n{code}\n")
        return run(["bash", tmp_path / "run.sh"]).stdout

    code = 'run_block() { echo "$*"; touch -- "${*: -3:1}"; }; '
    code += f"out={tmp_path}; measures=(kld saturation); text_measures=(kld)\n"
    code += "measure model data; measure_valid model data; measure model data"
    assert in_library(code).splitlines() == [
        f"{tmp_path}/kld.sh kld --output {tmp_path}/kld.json model data",
        f"{tmp_path}/saturation.sh saturation --output {tmp_path}/saturation.json model data",
        f"{tmp_path}/valid/kld.sh kld --split valid --output {tmp_path}/valid/kld.json model data",
    ]
    for measured, asked in (("test", ["test"]), ("valid,test", ["test", "valid"])):
        code = f"{EVALUATE}; measure() {{ echo test; }}; measure_valid() {{ echo valid; }}\n"
        assert (
            in_library(f"{code}splits=valid,test; measured={measured}; evaluate").split() == asked
        )
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "wordsim.txt").touch()
    for own, given in (("", ""), ("[train.user_dir]=my_layers", " --user-dir=my_layers")):
        code = f'{EVALUATE}; run() {{ echo "$@"; }}; measure() {{ :; }}; settings=({own})\n'
        code += f"splits=test; measured=test; word_pairs={tmp_path}/pairs; out=out; evaluate"
        assert in_library(code) == (
            "highrank measure word-similarity best.pt data "
            f"--benchmark={tmp_path}/pairs/wordsim.txt{given} --output out/word_similarity.json\n"
        )
