"""Define Transformer language models with a head; archs ``transformer_lm_<token>[_<preset>]``."""

from argparse import Namespace
from functools import partial

from fairseq.models import register_model
from fairseq.models.transformer_lm import (
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
)
from omegaconf import DictConfig, OmegaConf

from highrank_plugins.models.archs import fill_config, register_archs
from highrank_plugins.models.flat_config import flat_config
from highrank_plugins.models.head_model import HeadModel
from highrank_plugins.models.relative_positions import attach_relative_positions

TransformerLMHeadConfig = flat_config(
    "TransformerLMHeadConfig", TransformerLanguageModelConfig, "transformer_lm"
)
fill = partial(
    fill_config,
    config_class=TransformerLMHeadConfig,
    trunk={"head_frequent_ratio": 0.1, "head_bias": "false"},
)


@register_model("transformer_lm_highrank", dataclass=TransformerLMHeadConfig)
class TransformerLMHeadModel(HeadModel, TransformerLanguageModel):
    """Define fairseq's ``transformer_lm`` with a head as output projection."""

    @classmethod
    def build_model(cls, cfg: DictConfig, task):
        """Build the stock decoder, then the head and relative positions."""
        fill(cfg, stock_arch="transformer_lm", head={})
        flat = Namespace(**OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))
        model = super().build_model(flat, task)
        model.attach_head(flat, task.target_dictionary)
        attach_relative_positions(model, flat)
        return model


register_archs("transformer_lm_highrank", "transformer_lm", fill)
