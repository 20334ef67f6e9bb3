"""Networks between tokens and output layer that fairseq lacks. Pure torch."""

from .awd_lstm import AWDLSTM, State, TrunkOutput
from .rates import Rates
from .relative_attention import RelativeAttention

__all__ = ["AWDLSTM", "Rates", "RelativeAttention", "State", "TrunkOutput"]
