"""Define the options of the AWD-LSTM language model, their values by arch, and the trunk."""

from argparse import Namespace
from dataclasses import dataclass
from typing import Optional

from omegaconf import DictConfig

from highrank_plugins.common.names import flag
from highrank_plugins.common.option_field import described
from highrank_plugins.common.user_error import UserError
from highrank_plugins.models.archs import given_options, set_options
from highrank_plugins.models.awd_lstm_presets import preset_options
from highrank_plugins.models.head_from_options import choose_head
from highrank_plugins.models.head_options import HeadOptions
from highrank_plugins.trunks import AWDLSTM

# the trunk's constructor arguments → their names in fairseq
SIZES = {
    "embed_dim": "decoder_embed_dim",
    "hidden_size": "decoder_hidden_size",
    "last_hidden_size": "decoder_last_hidden_size",
    "layers": "decoder_layers",
}
RATES = ["dropout", "dropouti", "dropouth", "dropoute", "wdrop", "embed_noise"]


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
    """Give every unset option its value: the preset's for the chosen structure, else the head's.

    Filling twice changes nothing. Explicit values stay.

    Args:
        config: changed in place.
        preset: one of ``PRESETS``.
        head: the token's head options.
    """
    given = given_options(config)
    structure = given.get("head", head.get("head", "softmax"))
    defaults = {"head_bias": "true"} | preset_options(preset, structure)
    of_head = {k: v for k, v in defaults.items() if k.startswith("head")}
    of_trunk = {k: v for k, v in defaults.items() if k not in of_head}
    values = of_trunk | given | choose_head(given, head, of_head, language_model=True)
    values.setdefault("decoder_last_hidden_size", values["decoder_embed_dim"])
    set_options(config, values, AWDLSTMLanguageModelConfig)


def trunk_from_options(cfg: Namespace, num_words: int) -> AWDLSTM:
    """Build the trunk of a filled configuration."""
    options = {name: getattr(cfg, option) for name, option in SIZES.items()}
    rates = {name: getattr(cfg, name) for name in RATES}
    try:
        return AWDLSTM(num_words, **options, **rates)
    except ValueError as error:  # the message begins with the constructor's argument
        name, _, rest = str(error).partition(" ")
        raise UserError(f"{flag(SIZES.get(name, name))} {rest}") from None
