"""A log holds what a person reads, at its level and place; LOGLEVEL=DEBUG keeps the rest."""

import importlib
import io
import logging
import os
from argparse import Namespace

import pytest
from omegaconf import OmegaConf
from torch import nn
from tqdm import tqdm

from highrank_plugins.compat import log_lines
from highrank_plugins.compat.log_lines import NOTE


@pytest.fixture
def level(monkeypatch):
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    yield root.setLevel
    root.setLevel(before)


def shown(name: str, message: object, level: int = logging.INFO) -> str | None:
    """Return what a logger shows of a message, or None."""
    logger = logging.getLogger(name)
    record = logger.makeRecord(name, level, "file", 1, message, (), None)
    return record.getMessage() if logger.filter(record) else None


OPTIONS = OmegaConf.create({"common": {"seed": 1}})
PREPROCESS = "fairseq_cli.preprocess"


@pytest.mark.parametrize(
    ("name", "message", "said"),
    [
        ("fairseq_cli.train", nn.Linear(2, 2), None),
        ("fairseq_cli.train", "task: TranslationTask", None),
        ("fairseq_cli.train", "training on 1 devices (GPUs/TPUs)", None),
        ("fairseq_cli.train", "max tokens per device = 8 and max sentences per device = 9", None),
        ("fairseq.trainer", "detected shared parameter: a <- b", None),
        ("fairseq.trainer", "Saving checkpoint to /home/somebody/checkpoint_best.pt", None),
        ("fairseq.tasks.fairseq_task", "can_reuse_epoch_itr = True", None),
        ("fairseq.distributed.utils", "distributed init (rank 0): file:///tmp/store-0", None),
        ("fairseq.utils", "--user-dir=/home/somebody/a has already been imported.", None),
        ("fairseq.data.iterators", "grouped total_num_itrs = 9", None),
        ("fairseq_cli.train", OPTIONS, NOTE),
        (PREPROCESS, Namespace(seed=1), NOTE),
        (PREPROCESS, "[None] Dictionary: 9 types", "Dictionary: 9 types"),
        (PREPROCESS, "[en] Dictionary: 9 types", "[en] Dictionary: 9 types"),
        ("fairseq_cli.train", "training on 2 devices (GPUs/TPUs)", ...),
        ("fairseq_cli.train", "num. shared model params: 12 (num. trained: 12)", ...),
        ("fairseq.checkpoint_utils", "Saved a.pt (writing took 0.06590998100000434 seconds)",
         "Saved a.pt (written in 0.0 s)"),
    ],
)  # fmt: skip
def test_developer_lines_are_left_out_or_shortened(level, name, message, said):
    assert shown(name, message) == (message if said is ... else said)
    assert shown(name, message, logging.WARNING) is not None
    level(logging.DEBUG)
    assert shown(name, message) == str(message)


def test_lines_have_the_level_and_format_of_the_tools_and_clear_the_bar(level, monkeypatch):
    for before, chosen, after in (
        (logging.DEBUG, None, logging.INFO),
        (logging.DEBUG, "warning", logging.WARNING),
        (logging.ERROR, None, logging.ERROR),
    ):
        monkeypatch.setattr(os, "environ", {"LOGLEVEL": chosen} if chosen else {})
        level(before)
        importlib.reload(log_lines)
        assert logging.getLogger().level == after
    monkeypatch.undo()
    level(logging.INFO)
    root, stream = logging.getLogger(), io.StringIO()
    handler, own = logging.StreamHandler(), logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    own.setFormatter(logging.Formatter("%(message)s"))
    monkeypatch.setattr(root, "handlers", [handler, own])
    for _ in range(2):
        importlib.reload(log_lines)
    record = root.makeRecord("tool", logging.INFO, "file", 1, "done", (), None)
    assert handler.format(record).endswith(" | INFO | tool | done")
    assert own.format(record) == "done"
    assert [type(known).__name__ for known in own.filters] == ["ClearBars"]
    with tqdm(total=3, desc="epoch", file=stream, ncols=40) as bar:
        bar.refresh()
        assert stream.getvalue().rpartition("\r")[2].startswith("epoch")
        logging.getLogger("highrank").warning("something happened")
        assert "\rsomething happened\n" in stream.getvalue()
