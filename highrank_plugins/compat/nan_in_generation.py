"""fairseq silently translates from NaN.

What breaks: a model that yields NaN log-probabilities (overflow in half precision, a broken
checkpoint) still translates; the output is arbitrary and the exit code 0. Where every class is NaN
the message is `AssertionError: 200 < 200`.
Why: `SequenceGenerator._generate` turns NaN into minus infinity.
What we do: look at the log-probabilities before that, and at a fused language model's output, and
raise. This takes one sum per step.
Delete when: fairseq raises.
"""

import torch
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator

from highrank_plugins.common.patching import replaces


def refuse_nan(scores: torch.Tensor, source: str) -> None:
    """Raise FloatingPointError if `scores` (log-probabilities or logits) contain NaN."""
    # a sum of finite values and -inf is never NaN, and needs no second large tensor
    if scores.sum(dtype=torch.float32).isnan():
        raise FloatingPointError(
            f"{source} returned NaN: the checkpoint is broken, or --fp16 overflows (try without)"
        )


@replaces(EnsembleModel, "forward_decoder")
def forward_decoder(stock, ensemble, *args, **kwargs):
    """Take one decoding step; refuse NaN in log-probabilities [sentences * beam, M]."""
    log_probs, attention = stock(ensemble, *args, **kwargs)
    refuse_nan(log_probs, "the model (--path)")
    return log_probs, attention


def _check_language_model(_model, _inputs, output) -> None:
    refuse_nan(output[0], "the language model (--lm-path)")


@replaces(SequenceGenerator, "__init__")
def init(stock, generator, *args, **kwargs) -> None:
    """Construct; watch the language model, whose scores do not pass through `forward_decoder`."""
    stock(generator, *args, **kwargs)
    if generator.lm_model is not None:
        generator.lm_model.register_forward_hook(_check_language_model)
