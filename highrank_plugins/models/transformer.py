"""Define translation Transformers with a head; archs ``transformer_<token>[_<preset>]``."""

from argparse import Namespace
from functools import partial

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from omegaconf import DictConfig, OmegaConf

from highrank_plugins.models.archs import fill_config, register_archs
from highrank_plugins.models.flat_config import flat_config
from highrank_plugins.models.head_model import HeadModel
from highrank_plugins.models.relative_positions import attach_relative_positions

TransformerHeadConfig = flat_config("TransformerHeadConfig", TransformerConfig, "transformer")
fill = partial(
    fill_config,
    config_class=TransformerHeadConfig,
    trunk={"head_frequent_ratio": 0.5, "head_bias": "false"},
)


@register_model("transformer_highrank", dataclass=TransformerHeadConfig)
class TransformerHeadModel(HeadModel, TransformerModelBase):
    """Define fairseq's ``transformer`` with a head as output projection."""

    @classmethod
    def add_args(cls, parser):
        """Add options without defaults, which the architecture supplies."""
        gen_parser_from_dataclass(parser, TransformerHeadConfig(), delete_default=True)

    @classmethod
    def build_model(cls, cfg: DictConfig, task):
        """Build the stock encoder and decoder, then the head and relative positions."""
        fill(cfg, stock_arch="transformer", head={})
        flat = Namespace(**OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))
        model = super().build_model(TransformerConfig.from_namespace(flat), task)
        model.attach_head(flat, task.target_dictionary)
        attach_relative_positions(model, flat)
        return model


register_archs("transformer_highrank", "transformer", fill)
