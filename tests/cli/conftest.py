"""Checkpoints that several commands are tried on."""

import pytest

from tests.inference.checkpoints import write_checkpoint
from tests.tasks.built import build


@pytest.fixture(scope="session")
def mos(stream_data, tmp_path_factory):
    """Write an AWD-LSTM with MoS, and its data."""
    built = build(stream_data, "--head-components", 2, arch="awd_lstm_lm_mos")
    return write_checkpoint(tmp_path_factory.mktemp("mos") / "a.pt", built), stream_data
