"""The numbers of a training run reach metrics.jsonl."""

import json
import math

import pytest
import torch
from fairseq.logging import progress_bar as bars
from fairseq.logging.meters import AverageMeter, StopwatchMeter
from omegaconf import OmegaConf

from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks import metrics
from highrank_plugins.hooks.metrics import METRICS
from tests.compat.conftest import train
from tests.trainings import last


def lines(folder):
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def record(data, folder, *words, **changed):
    """Train, and log each update."""
    options = {"log_interval": 1, "log_format": "none", "max_tokens": 400}
    return train(data, folder, *words, **options | changed)


def test_numbers_are_recorded_with_any_log_format(data, tmp_path):
    layer = {"arch": "transformer_mos_tiny", "criterion": "highrank_cross_entropy"}
    for log_format in "none", "tqdm":
        folder = tmp_path / log_format
        record(data, folder, head_loss="chunked", log_format=log_format, **layer)
        kinds = [(line["tag"], line["num_updates"]) for line in lines(folder)]
        assert ("train_inner", 1) in kinds and ("valid", 2) in kinds
        sizes, first, *_ = lines(folder)
        assert sizes["tag"] == "start" and sizes["parameters"] > 1000 and sizes["num_updates"] == 0
        assert sizes["updates_per_epoch"] >= 2
        assert first["epoch"] == 1 and isinstance(first["loss"], float) and first["lr"] == 0.01
        (epoch,) = (line for line in lines(folder) if line["tag"] == "train")
        assert 0.01 < epoch["peak_memory_gib"] < 100
        assert epoch["implementations"]["mos"] == "chunked"  # other tests may have heads, too


def test_a_resumed_run_has_each_line_once(data, tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    record(data, whole, max_update=4)
    record(data, resumed)
    path = resumed / METRICS
    path.write_text(path.read_text() + '{"tag": "train_inner", "num_updates": 3}\n{"tag": "tr')
    record(data, resumed, max_update=4)
    one, other = ([(line["num_updates"], line["loss"]) for line in lines(run)
                   if line["tag"] == "train_inner"] for run in (whole, resumed))  # fmt: skip
    assert one == other and [update for update, _ in one] == [1, 2, 3, 4]
    names = [*next(line for line in lines(whole) if line["tag"] == "train_inner")]
    assert names.index("wall") < names.index("train_wall")  # which is of one update


def test_the_time_of_a_run_adds_up_over_its_sittings(data, tmp_path):
    """An epoch has several updates: the run is resumed within an epoch, and at the end of one."""
    for updates, before in ((1, 0), (2, 1000), (3, 2000)):
        state = record(data, tmp_path, max_tokens=60, max_update=updates)
        wall = lines(tmp_path)[-1]["wall"]
        assert before <= wall < before + 900
        assert before <= state["extra_state"]["previous_training_time"] < before + 900
        # several processes store a tensor
        time = torch.tensor(1000.0) + state["extra_state"]["previous_training_time"]
        state["extra_state"]["previous_training_time"] = time
        state["cfg"] = OmegaConf.to_container(state["cfg"], resolve=True, enum_to_str=True)
        torch.save(state, last(tmp_path))
    state = record(data, tmp_path / "other", finetune_from_model=last(tmp_path))
    assert lines(tmp_path / "other")[-1]["wall"] < 900
    assert state["extra_state"]["previous_training_time"] < 900


def test_a_file_of_an_earlier_run_is_kept_and_one_of_the_user_is_refused(data, tmp_path):
    (tmp_path / METRICS).write_text('{"tag": "train_inner", "num_updates": 1, "old": 1}\n')
    record(data, tmp_path)
    assert not any("old" in line for line in lines(tmp_path))
    (earlier,) = tmp_path.glob("metrics.before-*.jsonl")
    assert json.loads(earlier.read_text())["old"] == 1
    message = r"metrics\.jsonl:\d: no training run has written this line.*: move it away"
    for content in "my notes", '{"tag": "train"}\n{"step": 1, "loss": 2}\n':
        (tmp_path / METRICS).write_text(content)
        with pytest.raises(UserError, match=message):
            record(data, tmp_path)
        assert (tmp_path / METRICS).read_text() == content


def test_statistics_become_numbers_of_a_line_which_may_be_lost(tmp_path, monkeypatch, caplog):
    meter, watch = AverageMeter(), StopwatchMeter()
    meter.update(3.0)
    watch.sum = 2.5
    numbers = {"meter": meter, "watch": watch, "tensor": torch.tensor(1.5), "whole": 7,
               "nan": math.nan, "inf": math.inf}  # fmt: skip
    monkeypatch.setattr(metrics, "_written", [tmp_path / METRICS])
    bar = bars.progress_bar([], "none", 100, None, 3)  # the epoch is given by position
    bar.log(numbers | {"text": "0.25"}, tag="train_inner", step=1)
    known = {"meter": 3.0, "watch": 2.5, "tensor": 1.5, "whole": 7, "nan": None, "inf": None}
    assert lines(tmp_path) == [{"tag": "train_inner", "epoch": 3} | known | {"num_updates": 1}]
    bar.path = tmp_path / "missing" / METRICS  # as if the disk was full
    bar.log({"loss": 1.0}, tag="train_inner", step=2)
    assert "this line was not written" in caplog.text
