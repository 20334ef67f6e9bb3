"""Define AWD-LSTM language models with a head; archs ``awd_lstm_lm_<layer>[_<corpus>]``."""

from argparse import Namespace
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from fairseq.data import Dictionary
from fairseq.models import FairseqDecoder, FairseqLanguageModel, register_model
from omegaconf import DictConfig
from torch import Tensor, nn

from highrank_plugins.common.names import flag
from highrank_plugins.common.options import described
from highrank_plugins.common.user_error import UserError
from highrank_plugins.losses import LossOutput
from highrank_plugins.models.archs import given_options, plain_config, register_archs, set_options
from highrank_plugins.models.head_from_options import choose_head
from highrank_plugins.models.head_model import HeadModel
from highrank_plugins.models.head_options import HeadOptions
from highrank_plugins.trunks import AWDLSTM, TrunkOutput

# the trunk's constructor arguments → their names in fairseq
SIZES = {
    "embed_dim": "decoder_embed_dim",
    "hidden_size": "decoder_hidden_size",
    "last_hidden_size": "decoder_last_hidden_size",
    "layers": "decoder_layers",
}
RATES = ["dropout", "dropouti", "dropouth", "dropoute", "wdrop", "embed_noise"]


def _preset(layers: int, sizes: tuple[int, ...], rates: tuple[float, ...] = (), **head) -> dict:
    """Return options: sizes of embeddings, LSTMs, the last LSTM; dropouti, dropouth, the head's."""
    names = ("decoder_embed_dim", "decoder_hidden_size", "decoder_last_hidden_size")
    found = {"decoder_layers": layers, **dict(zip(names, sizes, strict=False))}
    found |= dict.fromkeys([*RATES, "head_dropout"], 0.0)
    if rates:
        found |= {"dropout": 0.4, "dropoute": 0.1, "wdrop": 0.5}
        found |= dict(zip(("dropouti", "dropouth", "head_dropout"), rates, strict=True))
    return found | head


# Sizes and dropouts by corpus and structure: Merity et al. 2018 for softmax on ptb and wt2; Yang et
# al. 2018 for MoS and MoC, and for softmax on 1b and text8. On these two, the paper has no dropout
# (1b) or gives none (text8). Yang et al. 2019 compare Mixtape and MoS-15 at equal size. Mixtape's
# gates are small, so its LSTMs must be wider; the paper does not say how wide
_SOFTMAX = {
    "ptb": _preset(3, (400, 1150), (0.4, 0.25, 0.0)),
    "wt2": _preset(3, (400, 1150), (0.65, 0.2, 0.0), head_gss_k=3.0),
    "1b": _preset(2, (1024, 1024)),
    "text8": _preset(1, (1024, 1024)),
}
_MOS = {
    "ptb": _preset(3, (280, 960, 620), (0.4, 0.225, 0.29)),
    "wt2": _preset(3, (300, 1150, 650), (0.55, 0.2, 0.29)),
    "1b": _preset(2, (900, 1024, 1024), head_components=7),
    "text8": _preset(1, (510, 910, 910), head_components=7),
}
_MIXTAPE = {
    "ptb": _preset(3, (280, 1024, 620), (0.4, 0.225, 0.29)),
    "wt2": _preset(3, (300, 1208, 650), (0.55, 0.2, 0.29)),
    "1b": _preset(2, (900, 1140, 1024)),
    "text8": _preset(1, (510, 910, 910)),
}
PRESETS = {
    name: {"softmax": _SOFTMAX[name], "moc": _MOS[name], "mos": _MOS[name], "mixtape": mixtape}
    for name, mixtape in _MIXTAPE.items()
}
DEFAULT = "ptb"


@dataclass
class AWDLSTMLanguageModelConfig(HeadOptions):
    """Define options that are ``None`` until the architecture fills them."""

    decoder_embed_dim: Optional[int] = described(
        "width of the embeddings, and of the vocabulary matrix"
    )
    separate_embeddings: bool = described(
        "give the output layer a vocabulary matrix of its own (default: the embeddings, as in "
        "the papers)",
        False,
    )
    decoder_hidden_size: Optional[int] = described("units of every LSTM but the last")
    decoder_last_hidden_size: Optional[int] = described(
        "units of the last LSTM (default: the embeddings' width, if the "
        "architecture does not set it)"
    )
    decoder_layers: Optional[int] = described("number of LSTMs")
    dropout: Optional[float] = described("dropout on the last LSTM's outputs, locked over time")
    dropouti: Optional[float] = described("dropout on the embedded words, locked over time")
    dropouth: Optional[float] = described("dropout between LSTMs, locked over time")
    dropoute: Optional[float] = described("dropout of whole words of the vocabulary")
    wdrop: Optional[float] = described("dropout of entries of the LSTMs' recurrent matrices")
    embed_noise: Optional[float] = described(
        "standard deviation of Gaussian noise on the embedded words"
    )


def fill(config: Namespace | DictConfig, preset: str, head: dict) -> None:
    """Give unset options the preset's values for the structure, or the head's: ``fill_config``."""
    given = given_options(config)
    structure = given.get("head", head.get("head", "softmax"))
    published = PRESETS[preset].get(structure, PRESETS[preset]["softmax"])
    of_head = {"head_bias": "true"} | {k: v for k, v in published.items() if k.startswith("head")}
    of_trunk = {k: v for k, v in published.items() if k not in of_head}
    values = of_trunk | given | choose_head(given, head, of_head, language_model=True)
    values.setdefault("decoder_last_hidden_size", values["decoder_embed_dim"])
    set_options(config, values, AWDLSTMLanguageModelConfig)


# `Head.nll` of a batch of streams, [B, T] per token, with the trunk's output for the next batch
ModelLoss = namedtuple("ModelLoss", (*LossOutput._fields, *TrunkOutput._fields))


class AWDLSTMDecoder(FairseqDecoder):
    """Hold the trunk and, at ``output_projection``, the head, which the model attaches.

    Its vocabulary matrix is the embedding or, with ``own_width``, another one of this width with
    the same start, U(±0.1). A beam search reads all words so far at each step.
    """

    def __init__(
        self, dictionary: Dictionary, trunk: AWDLSTM, own_width: Optional[int] = None
    ) -> None:
        super().__init__(dictionary)
        self.trunk = trunk
        self.output_embed_dim = trunk.feature_dim
        self.share_input_output_embed = own_width is None
        self.output_projection = trunk.embed
        if own_width is not None:
            self.output_projection = nn.Embedding(len(dictionary), own_width)
            nn.init.uniform_(self.output_projection.weight, -0.1, 0.1)

    def forward(self, src_tokens: Tensor, *, features_only: bool = False, **kwargs):
        """Return log-probabilities [B, T, V], or the features, as ``extract_features`` does."""
        features, extra = self.extract_features(src_tokens, **kwargs)
        return features if features_only else self.output_layer(features), extra

    def extract_features(
        self, src_tokens: Tensor, encoder_out: None = None, src_lengths: Tensor | None = None,
        state: Sequence[tuple[Tensor, Tensor]] | None = None,
    ):  # fmt: skip
        """Return features [B, T, F] of ``src_tokens`` [B, T], and a dictionary with ``state``.

        The words before them ended in ``state`` (None: zeros). Other arguments are fairseq's, and
        have no effect.
        """
        out = self.trunk(src_tokens.t(), state)
        return out.features.transpose(0, 1), {"attn": None, "state": out.state}

    def output_layer(self, features: Tensor) -> Tensor:
        # time-major, so that dropout on contexts is locked over time
        return self.output_projection(features.transpose(0, 1)).transpose(0, 1)


@register_model("awd_lstm_lm", dataclass=AWDLSTMLanguageModelConfig)
class AWDLSTMLanguageModel(HeadModel, FairseqLanguageModel):
    """Define an AWD-LSTM (Merity et al. 2018) with a head, whose contexts' dropout is locked."""

    @classmethod
    def build_model(cls, cfg: DictConfig, task):
        flat = plain_config(cfg, fill, DEFAULT)
        dictionary, names = task.target_dictionary, SIZES | {name: name for name in RATES}
        options = {name: getattr(flat, option) for name, option in names.items()}
        try:
            trunk = AWDLSTM(len(dictionary), **options)
        except ValueError as error:  # its message begins with the argument
            name, _, rest = str(error).partition(" ")
            raise UserError(f"{flag(names.get(name, name))} {rest}") from None
        width = flat.head_embed_dim or flat.decoder_embed_dim
        own = width if flat.separate_embeddings else None
        model = cls(AWDLSTMDecoder(dictionary, trunk, own))
        model.attach_head(flat, dictionary, locked_dropout=True)
        return model

    def bptt_features(
        self, src_tokens: Tensor, state: Sequence[tuple[Tensor, Tensor]] | None = None
    ) -> TrunkOutput:
        """Return the trunk's output for ``src_tokens`` [B, T]; time-major, [T, B, F]."""
        return self.decoder.trunk(src_tokens.t(), state)

    def forward(
        self, src_tokens: Tensor, *, src_lengths: Tensor | None = None,
        state: Sequence[tuple[Tensor, Tensor]] | None = None,
        target: Tensor | None = None, **kwargs,
    ):  # fmt: skip
        """Return the decoder's output; with a target [B, T] the loss, as ``HeadModel.forward``.

        The words before ended in ``state`` (None: zeros). ``src_lengths`` has no effect.
        """
        if target is None:
            self.check_criterion()
            return self.decoder(src_tokens, state=state, **kwargs)
        if not isinstance(target, Tensor):
            raise UserError("--teacher: an AWD-LSTM can teach, but not learn from a teacher")
        found = self.bptt_features(src_tokens, state)
        options = {"reduction": "sum", **kwargs}
        out = self.head_loss(found.features, target.t(), **options)
        if options["reduction"] == "none":
            out = out.map(Tensor.t)
        return ModelLoss(*out, *found)


# without a corpus in its name, an architecture has the sizes of `DEFAULT`
register_archs("awd_lstm_lm", "awd_lstm_lm", fill, {"": DEFAULT, **{f"_{c}": c for c in PRESETS}})
