"""A log holds what a person reads; LOGLEVEL=DEBUG keeps the rest."""

import inspect
import logging
import re
from argparse import Namespace

import pytest
from fairseq import checkpoint_utils, trainer, utils
from fairseq.data import data_utils, iterators
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks import fairseq_task
from fairseq_cli import preprocess, train
from omegaconf import OmegaConf
from torch import nn

from highrank_plugins.compat import developer_lines
from highrank_plugins.compat.developer_lines import NOTE

SOURCES = {
    "fairseq_cli.train": train, "fairseq.trainer": trainer,
    "fairseq.checkpoint_utils": checkpoint_utils, "fairseq.data.data_utils": data_utils,
    "fairseq.data.iterators": iterators, "fairseq.tasks.fairseq_task": fairseq_task,
    "fairseq.distributed.utils": distributed_utils, "fairseq.utils": utils,
}  # fmt: skip


@pytest.fixture
def level(monkeypatch):
    root = logging.getLogger()
    before = root.level
    yield root.setLevel
    root.setLevel(before)


def shown(name: str, message: object) -> str | None:
    """Return what a logger shows of a message, or None."""
    logger = logging.getLogger(name)
    record = logger.makeRecord(name, logging.INFO, "file", 1, message, (), None)
    return record.getMessage() if logger.filter(record) else None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fairseq_cli.train", nn.Linear(2, 2)),
        ("fairseq_cli.train", "task: TranslationTask"),
        ("fairseq_cli.train", "training on 1 devices (GPUs/TPUs)"),
        ("fairseq_cli.train", "max tokens per device = 8 and max sentences per device = None"),
        ("fairseq.trainer", "detected shared parameter: a <- b"),
        ("fairseq.trainer", "Saving checkpoint to /home/somebody/checkpoint_best.pt"),
        ("fairseq.tasks.fairseq_task", "can_reuse_epoch_itr = True"),
        ("fairseq.distributed.utils", "distributed init (rank 0): file:///tmp/store-0"),
        ("fairseq.utils", "--user-dir=/home/somebody/a has already been imported."),
        ("fairseq.data.iterators", "grouped total_num_itrs = 9"),
    ],
)
def test_developer_lines_are_left_out(level, name, message):
    level(logging.INFO)
    assert shown(name, message) is None
    level(logging.DEBUG)
    assert shown(name, message) == str(message)


def test_options_are_replaced_by_a_note(level):
    level(logging.INFO)
    assert shown("fairseq_cli.train", OmegaConf.create({"common": {"seed": 1}})) == NOTE
    level(logging.DEBUG)
    assert "seed" in shown("fairseq_cli.train", OmegaConf.create({"common": {"seed": 1}}))


def test_preprocessing_prints_neither_options_nor_none_as_a_language(level):
    level(logging.INFO)
    assert shown("fairseq_cli.preprocess", Namespace(seed=1)) == NOTE
    assert shown("fairseq_cli.preprocess", "[None] Dictionary: 9 types") == "Dictionary: 9 types"
    assert shown("fairseq_cli.preprocess", "[en] Dictionary: 9 types") == "[en] Dictionary: 9 types"
    source = inspect.getsource(preprocess)
    assert "logger.info(args)" in source and '"[{}] Dictionary: {} types"' in source


@pytest.mark.parametrize(
    "message",
    ["training on 2 devices (GPUs/TPUs)", "num. shared model params: 12 (num. trained: 12)"],
)
def test_other_lines_are_kept(level, message):
    level(logging.INFO)
    assert shown("fairseq_cli.train", message) == message


def test_warnings_are_kept(level):
    level(logging.INFO)
    logger = logging.getLogger("fairseq.trainer")
    record = logger.makeRecord("", logging.WARNING, "file", 1, "begin training epoch 1", (), None)
    assert logger.filter(record)


@pytest.mark.parametrize("name", SOURCES)
def test_fairseq_still_logs_the_lines_that_are_left_out(name):
    """Find each start of a line in the source of its module."""
    source = inspect.getsource(SOURCES[name])
    plain = developer_lines._LINES[name].replace("\\", "")
    for part in re.split(r"\||\(\?:|\)", plain):
        word = re.match(r"[\w. -]*", part)[0].strip()
        assert re.sub(r" \d$", "", word) in source


def test_seconds_are_rounded(level):
    level(logging.INFO)
    said = shown(
        "fairseq.checkpoint_utils", "Saved a.pt (writing took 0.06590998100000434 seconds)"
    )
    assert said == "Saved a.pt (written in 0.0 s)"
    assert "(writing took " in inspect.getsource(checkpoint_utils)
