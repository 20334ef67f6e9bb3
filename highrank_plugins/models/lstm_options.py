"""Options of the encoder-decoder LSTM: fairseq's, without defaults, and those of the head."""

from argparse import Action, ArgumentParser
from dataclasses import field, make_dataclass
from typing import Optional

from fairseq.models.lstm import LSTMModel

from highrank_plugins.models.head_options import HeadOptions


def _stock_fields() -> list[tuple]:
    """fairseq declares them to argparse alone; ``None`` is unset, an architecture fills it."""
    parser = ArgumentParser(add_help=False)
    LSTMModel.add_args(parser)
    return [
        (a.dest, Optional[_type(a)], field(default=None, metadata={"help": a.help}))
        for a in parser._actions
    ]


def _type(option: Action) -> type:
    takes_no_value = option.nargs == 0
    return bool if takes_no_value else option.type or str


LSTMHeadConfig = make_dataclass("LSTMHeadConfig", _stock_fields(), bases=(HeadOptions,))
LSTMHeadConfig.__doc__ = "Unset options are ``None`` until the architecture fills them."
