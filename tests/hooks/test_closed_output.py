"""Test hooks/closed_output.py, common/user_error.py and what commands do with them."""

import io
import logging
import os
import sys
from contextlib import contextmanager, nullcontext

import pytest
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils
from omegaconf import OmegaConf

from highrank_plugins.common.user_error import has_no_reader
from highrank_plugins.hooks.commands import print_uncaught

CFG = OmegaConf.structured(FairseqConfig())


@contextmanager
def piped(monkeypatch, program="/usr/bin/fairseq-train"):
    """Make standard output a pipe, and keep standard error; yields the two ends of the pipe."""
    reader, writer = os.pipe()
    with (
        os.fdopen(reader, "rb") as read,
        os.fdopen(writer, "w") as write,
        monkeypatch.context() as m,
    ):
        m.setattr("sys.stdout", write)
        m.setattr("sys.stderr", io.StringIO())
        m.setattr("sys.argv", [program])
        yield read, write
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # closes without an error


def test_a_pipe_has_a_reader_until_its_other_end_is_closed(monkeypatch, tmp_path):
    with piped(monkeypatch) as (reader, _):
        assert not has_no_reader()
        reader.close()
        assert has_no_reader()
    monkeypatch.setattr("sys.stderr", None)
    with (tmp_path / "out").open("w") as file:
        monkeypatch.setattr("sys.stdout", file)
        assert not has_no_reader()
    assert not has_no_reader()  # a closed stream


@pytest.mark.parametrize("flush", [False, True])
def test_a_command_without_a_reader_ends_silently(flush, monkeypatch):
    with piped(monkeypatch, "/usr/bin/fairseq-generate") as (reader, writer):
        reader.close()
        with pytest.raises(BrokenPipeError) as error:
            utils.call_main(CFG, lambda cfg: print("a line", flush=flush))
        with pytest.raises(SystemExit) as ended:
            print_uncaught(error.type, error.value, error.tb)
        assert (ended.value.code, sys.stderr.getvalue()) == (1, "")
        writer.flush()  # as Python does at its end


def test_another_broken_pipe_is_reported(monkeypatch, capfd):
    error = BrokenPipeError(32, "Broken pipe")
    with piped(monkeypatch, "/usr/bin/fairseq-generate"):
        with pytest.raises(SystemExit) as ended:
            print_uncaught(type(error), error, None)
        assert ended.value.code == 2
    assert capfd.readouterr().err == "fairseq-generate: error: [Errno 32] Broken pipe\n"


@pytest.mark.parametrize(
    ("program", "ends"),
    [("fairseq-eval-lm", True), ("fairseq-train", False), ("fairseq_cli/train.py", False)],
)
def test_a_log_without_a_reader_ends_an_evaluation_but_no_training(program, ends, monkeypatch):
    logger = logging.Logger("test")
    with piped(monkeypatch, f"/usr/bin/{program}") as (reader, writer):
        logger.addHandler(logging.StreamHandler(writer))
        reader.close()
        with pytest.raises(BrokenPipeError) if ends else nullcontext():
            logger.info("a line")
        assert sys.stderr.getvalue() == ""
        logger.info("%d", "no number")  # another error
        assert "Logging error" in sys.stderr.getvalue()


def test_a_command_without_output_ends_without_an_error(monkeypatch):
    with monkeypatch.context() as m:
        m.setattr("sys.argv", ["/usr/bin/fairseq-train"])
        m.setattr("sys.stdout", None)
        assert utils.call_main(CFG, lambda cfg: None) is None
