"""A recipe from raw text to its score: killed in training, resumed, repeated, changed."""

import json
import re
from types import SimpleNamespace

import pytest
import torch

import highrank_plugins
from tests.recipes.running import kill_when, overrides, raw_text, recipe, run, stages_done
from tests.trainings import parameters

highrank_plugins.register()  # admits the plain classes that fairseq stores

NAME = "multi30k_en_de"
pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("whole_run")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Kill a training run, and run it to its end; return how to repeat it, and what it printed."""
    folder = tmp_path_factory.mktemp("whole run")  # a space in every path
    data, run_dir = raw_text(folder / "data"), folder / "exp" / NAME / "a"

    def start(**changes: object) -> list[str]:
        words = ["--data", data, "--text", "any", "--exp-dir", folder / "exp"]
        words += ["--conf", "mixtape", "--name", "a"]
        return recipe(NAME, *words, settings=overrides(**changes))

    kill_when(start(), (run_dir / "train" / "checkpoint_last.pt").exists)
    return SimpleNamespace(start=start, run_dir=run_dir, result=run(start()))


def test_training_resumes_after_the_kill_and_ends_in_a_score(whole):
    finished, run_dir = whole.result, whole.run_dir
    assert stages_done(finished) == [3, 4, 5, 6]
    log = (run_dir / "train" / "train.log").read_text()
    assert "Loaded checkpoint" in log
    assert list(run_dir.glob("train.before-*")) == []
    record = json.loads((run_dir / "results.json").read_text())
    assert record["train"]["epochs"] == 3 and record["train"]["words_per_second"] > 0
    *samples, last = finished.stdout.splitlines()
    assert last == f"sacreBLEU {record['metrics']['sacrebleu']} {record['signature']}"
    assert sum(row.startswith(" translation") for row in samples) == 5
    assert set(record["metrics"]) == {"sacrebleu", "chrf"}
    assert record["config"]["data"]["vocab_size"] == 200
    assert record["command"] == (run_dir / "train" / "command.sh").read_text().rstrip()
    assert len((run_dir / "score" / "test.de").read_text().splitlines()) == 20
    assert re.search(r"^epoch 3, update \d+: loss [\d.]+, \d+ words/s$", finished.stderr, re.M)
    assert re.search(r"^epoch 3, update \d+: validation loss [\d.]+$", finished.stderr, re.M)
    assert list((run_dir / "train" / "tensorboard").rglob("events.out.tfevents.*"))
    # the average of the last checkpoints translates
    assert "average/checkpoint.pt" in (run_dir / "generate" / "command.sh").read_text()
    averaged = parameters(run_dir / "average" / "checkpoint.pt")
    third, second = (parameters(run_dir / "train" / f"checkpoint{n}.pt") for n in (3, 2))
    assert not torch.equal(*(of["decoder.output_projection.weight"] for of in (second, third)))
    for name, value in averaged.items():
        torch.testing.assert_close(value, (second[name] + third[name]) / 2)
    again = run(whole.start())
    assert stages_done(again) == [] and again.stdout == finished.stdout


def test_changed_options_repeat_the_stages_that_depend_on_them(whole):
    """The beam changes the translations; measures that are asked for are in the record."""
    changed = run(whole.start(generate__beam=2, spectrum__tokens=200))
    assert stages_done(changed) == [5, 6]
    record = json.loads((whole.run_dir / "results.json").read_text())
    assert record["config"]["generate"]["beam"] == 2
    metrics = record["metrics"]
    assert 1 <= metrics["test_rank"] <= 200
    assert record["signatures"]["test_rank"].startswith("press|contexts:200|")
    ledger = record["ledger"]
    whole = ledger["data-bin"]["test.de"]["out"]
    assert ledger["spectrum"]["test.de"]["out"] == {"tokens": 200}
    assert ledger["spectrum"]["test.de"]["left out"] == {
        "after --tokens": {"tokens": whole["tokens"] - 200}
    }
    assert ledger["generate"]["test.en"]["out"] == ledger["data-bin"]["test.en"]["out"]
    assert ledger["generate"]["test.de"]["out"]["sentences"] == 20
    assert ledger["evaluate"]["test.de"]["out"].items() >= whole.items()
