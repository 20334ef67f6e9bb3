"""A dozen warnings that users can do nothing about hide those that matter.

What breaks: each process prints about 30 lines of warnings from inside fairseq.
Why: fairseq calls hydra as hydra 1.0 wanted it, torch.cuda.amp as torch 2.3 did, mixes boolean and
float attention masks, and asks for pinned memory on machines without an accelerator.
What we do: filter these messages, each by its text.
Delete when: a run of fairseq-train prints none of them without this file.
"""

import warnings

_MESSAGES = (
    r"hydra\.experimental\.",
    r"\s*The version_base parameter is not specified",
    r"In '.*': Usage of deprecated keyword in package header",
    r"\s*'.*' is validated against ConfigStore schema",
    r"\s*The strict flag in the compose API is deprecated",
    r"'pin_memory' argument is set as true but no accelerator",
    r"`torch\.cuda\.amp\.",
    r"Support for mismatched key_padding_mask and attn_mask is deprecated",
)

for _message in _MESSAGES:
    warnings.filterwarnings("ignore", message=_message)
