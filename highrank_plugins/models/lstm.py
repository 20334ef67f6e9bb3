"""Define the LSTM encoder-decoder with attention and a head; archs ``lstm_<layer>[_<preset>]``."""

from argparse import ArgumentParser
from dataclasses import make_dataclass
from functools import partial
from typing import Optional

from fairseq.models import register_model
from fairseq.models.lstm import LSTMDecoder, LSTMModel
from omegaconf import DictConfig
from torch import Tensor

from highrank_plugins.common.options import described
from highrank_plugins.models.archs import fill_config, plain_config, register_archs
from highrank_plugins.models.head_model import HeadModel
from highrank_plugins.models.head_options import HeadOptions


def _stock_fields() -> list[tuple]:
    """Return fields that fairseq declares only to argparse; ``None`` is unset."""
    parser = ArgumentParser(add_help=False)
    LSTMModel.add_args(parser)
    types = [bool if a.nargs == 0 else a.type or str for a in parser._actions]
    options = zip(parser._actions, types, strict=True)
    return [(a.dest, Optional[kind], described(a.help)) for a, kind in options]


LSTMHeadConfig = make_dataclass("LSTMHeadConfig", _stock_fields(), bases=(HeadOptions,))
LSTMHeadConfig.__doc__ = "Unset options are ``None`` until the architecture fills them."

fill = partial(fill_config, config_class=LSTMHeadConfig, trunk={"head_bias": "true"})


class LSTMHeadDecoder(LSTMDecoder):
    """Hold fairseq's LSTM decoder with, at ``output_projection``, the head."""

    def output_layer(self, x: Tensor) -> Tensor:
        return self.output_projection(x)


@register_model("lstm_highrank", dataclass=LSTMHeadConfig)
class LSTMHeadModel(HeadModel, LSTMModel):
    """Define fairseq's ``lstm`` with a head, which reads what its output layer would read."""

    @classmethod
    def build_model(cls, cfg: DictConfig, task):
        flat = plain_config(cfg, fill, "lstm")
        flat.criterion = None  # fairseq reads it for its adaptive softmax
        model = super().build_model(flat, task)
        decoder = model.decoder
        decoder.__class__ = LSTMHeadDecoder  # fairseq offers no way to build another decoder
        decoder.output_embed_dim = flat.decoder_out_embed_dim
        tied = decoder.share_input_output_embed
        stock = decoder.output_projection = decoder.embed_tokens if tied else decoder.fc_out
        model.attach_head(flat, task.target_dictionary)
        if not tied:
            del decoder.fc_out
            if model.head.bias is not None:
                model.head.bias = stock.bias  # the same seed gives the same start
        return model

    def features(self, *args, **kwargs):
        return self.extract_features(*args, **kwargs)


register_archs("lstm_highrank", "lstm", fill)
