"""Define Transformers with a head; archs ``transformer_[lm_]<layer>[_<preset>]``."""

from functools import partial

from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from omegaconf import DictConfig

from highrank_plugins.models.archs import fill_config, flat_config, plain_config, register_archs
from highrank_plugins.models.head_model import HeadModel
from highrank_plugins.models.relative_positions import attach_relative_positions

TransformerHeadConfig = flat_config("TransformerHeadConfig", TransformerConfig, "transformer")
fill = partial(fill_config, config_class=TransformerHeadConfig, trunk={"head_bias": "false"})
TransformerLMHeadConfig = flat_config(
    "TransformerLMHeadConfig", TransformerLanguageModelConfig, "transformer_lm"
)
fill_lm = partial(
    fill_config,
    config_class=TransformerLMHeadConfig,
    trunk={"head_bias": "false"},
    language_model=True,
)


@register_model("transformer_highrank", dataclass=TransformerHeadConfig)
class TransformerHeadModel(HeadModel, TransformerModelBase):
    """Define fairseq's ``transformer`` with a head as output projection."""

    @classmethod
    def build_model(cls, cfg: DictConfig, task):
        flat = plain_config(cfg, fill, "transformer")
        model = super().build_model(TransformerConfig.from_namespace(flat), task)
        model.attach_head(flat, task.target_dictionary)
        attach_relative_positions(model, flat)
        return model


@register_model("transformer_lm_highrank", dataclass=TransformerLMHeadConfig)
class TransformerLMHeadModel(HeadModel, TransformerLanguageModel):
    """Define fairseq's ``transformer_lm`` with a head as output projection."""

    @classmethod
    def build_model(cls, cfg: DictConfig, task):
        flat = plain_config(cfg, fill_lm, "transformer_lm")
        model = super().build_model(flat, task)
        model.attach_head(flat, task.target_dictionary)
        attach_relative_positions(model, flat)
        return model


register_archs("transformer_highrank", "transformer", fill)
register_archs("transformer_lm_highrank", "transformer_lm", fill_lm)
