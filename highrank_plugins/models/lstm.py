"""Define the LSTM encoder-decoder with attention and a head; archs ``lstm_<layer>[_<preset>]``."""

from argparse import Action, ArgumentParser, Namespace
from dataclasses import make_dataclass
from functools import partial
from typing import Optional

from fairseq.models import register_model
from fairseq.models.lstm import LSTMDecoder, LSTMModel
from omegaconf import DictConfig
from torch import Tensor

from highrank_plugins.common.option_field import described
from highrank_plugins.models.archs import fill_config, plain_config, register_archs
from highrank_plugins.models.head_model import HeadModel
from highrank_plugins.models.head_options import HeadOptions


def _stock_fields() -> list[tuple]:
    """Return fields that fairseq declares only to argparse; ``None`` is unset."""
    parser = ArgumentParser(add_help=False)
    LSTMModel.add_args(parser)
    return [(a.dest, Optional[_type(a)], described(a.help)) for a in parser._actions]


def _type(option: Action) -> type:
    takes_no_value = option.nargs == 0
    return bool if takes_no_value else option.type or str


LSTMHeadConfig = make_dataclass("LSTMHeadConfig", _stock_fields(), bases=(HeadOptions,))
LSTMHeadConfig.__doc__ = "Unset options are ``None`` until the architecture fills them."

fill = partial(
    fill_config,
    config_class=LSTMHeadConfig,
    trunk={"head_bias": "true"},
)
OURS, STOCKS = "decoder.output_projection.", "decoder.fc_out."


class LSTMHeadDecoder(LSTMDecoder):
    """Hold fairseq's LSTM decoder with, at ``output_projection``, the head."""

    def output_layer(self, x: Tensor) -> Tensor:
        """Return log-probabilities [B, T, V] of features [B, T, F]."""
        return self.output_projection(x)


@register_model("lstm_highrank", dataclass=LSTMHeadConfig)
class LSTMHeadModel(HeadModel, LSTMModel):
    """Define fairseq's ``lstm`` with a head as output layer.

    The head reads what fairseq's output layer reads: the attentional vectors, projected to
    ``--decoder-out-embed-dim`` where that is not their width.
    """

    @classmethod
    def build_model(cls, cfg: DictConfig, task):
        """Build the stock encoder and decoder, then the head."""
        flat = plain_config(cfg, fill, "lstm")
        flat.criterion = None  # fairseq reads it for its adaptive softmax
        model = super().build_model(flat, task)
        model.replace_output_layer(flat, task.target_dictionary)
        return model

    @classmethod
    def head_sizes(cls, cfg: Namespace) -> tuple[int, int, bool]:
        """Return the widths of features and vocabulary matrix, and whether the latter is shared."""
        features = cfg.decoder_out_embed_dim
        return features, features, cfg.share_decoder_input_output_embed or cfg.share_all_embeddings

    def replace_output_layer(self, cfg: Namespace, dictionary) -> None:
        """Attach the head in place of ``fc_out``, or of the use of the embedding."""
        decoder = self.decoder
        decoder.__class__ = LSTMHeadDecoder  # fairseq offers no way to build another decoder
        decoder.output_embed_dim = cfg.decoder_out_embed_dim
        tied = decoder.share_input_output_embed
        stock = decoder.output_projection = decoder.embed_tokens if tied else decoder.fc_out
        self.attach_head(cfg, dictionary)
        if tied:
            return
        del decoder.fc_out
        if self.head.bias is not None:
            self.head.bias = stock.bias  # the same seed gives the same start

    def features(self, *args, **kwargs):
        """Return what the head reads [B, T, F], and the attention."""
        return self.extract_features(*args, **kwargs)

    def upgrade_state_dict_named(self, state_dict: dict, name: str) -> None:
        """Upgrade stock checkpoints, whose output layer has another name, or none."""
        _rename_stocks(state_dict, tied=self.decoder.share_input_output_embed)
        super().upgrade_state_dict_named(state_dict, name)


def _rename_stocks(state_dict: dict, tied: bool) -> None:
    """Rename the output layer from ``fc_out``; a tied one has no key."""
    embedding = state_dict.get("decoder.embed_tokens.weight")
    if tied and embedding is not None:
        state_dict.setdefault(f"{OURS}weight", embedding)
    elif not tied:
        for key in [key for key in state_dict if key.startswith(STOCKS)]:
            state_dict[OURS + key.removeprefix(STOCKS)] = state_dict.pop(key)


register_archs("lstm_highrank", "lstm", fill)
