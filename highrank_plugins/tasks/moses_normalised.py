"""Tokenise text for translation as `highrank data pieces --algorithm subword_nmt` does."""

from fairseq.data.encoders import register_tokenizer
from fairseq.data.encoders.moses_tokenizer import MosesTokenizer, MosesTokenizerConfig

from highrank_plugins.data.pieces import normalise_and_tokenise


@register_tokenizer("moses_normalised", dataclass=MosesTokenizerConfig)
class NormalisedMosesTokenizer(MosesTokenizer):
    """Normalise punctuation before Moses' tokens, which `--tokenizer moses` leaves out."""

    def encode(self, x: str) -> str:
        return normalise_and_tokenise(x, self.cfg.source_lang)
