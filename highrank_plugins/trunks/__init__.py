"""Provide networks between tokens and output layer that fairseq lacks. It needs torch only."""

from highrank_plugins.trunks.awd_lstm import (
    AWDLSTM,
    Rates,
    State,
    TrunkOutput,
    activation_penalty,
    temporal_penalty,
)
from highrank_plugins.trunks.relative_attention import RelativeAttention

__all__ = ["AWDLSTM", "Rates", "RelativeAttention", "State", "TrunkOutput",
           "activation_penalty", "temporal_penalty"]  # fmt: skip
