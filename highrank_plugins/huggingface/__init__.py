"""Put any output layer of this package on any causal language model of Hugging Face.

>>> model = replace_head(AutoModelForCausalLM.from_pretrained("gpt2"), "mos", batch=token_ids)
>>> model(token_ids, labels=token_ids).loss.backward()
"""

from __future__ import annotations

from highrank_plugins.common.user_error import UserError

try:
    import transformers.audio_utils  # noqa: F401 (most model classes import it, and it torchaudio)
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto import modeling_auto
    from transformers.utils.versions import require_version
except ImportError as error:
    missing = f"{__name__}: {error}; pip install 'transformers>=5.0,<6' safetensors"
    raise UserError(missing) from error
except OSError as error:
    raise UserError(f"{__name__}: the torchaudio here does not fit torch, and transformers "
                    f"imports it; pip uninstall torchaudio ({error})") from error  # fmt: skip

require_version("transformers>=5.0,<6", "pip install 'transformers>=5.0,<6'")

from highrank_plugins.huggingface.config import HighrankConfig  # noqa: E402 (after the check)
from highrank_plugins.huggingface.model import HighrankForCausalLM  # noqa: E402 (after the check)
from highrank_plugins.huggingface.replace import replace_head  # noqa: E402 (after the check)

__all__ = ["HighrankConfig", "HighrankForCausalLM", "replace_head"]

AutoConfig.register(HighrankConfig.model_type, HighrankConfig)
AutoModelForCausalLM.register(HighrankConfig, HighrankForCausalLM)
# under label_smoothing_factor, Trainer shifts labels only for the names in this table
modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[HighrankConfig.model_type] = "HighrankForCausalLM"
