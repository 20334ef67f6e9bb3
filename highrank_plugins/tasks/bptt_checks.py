"""Refuse options of ``bptt_language_modeling`` that lose tokens, their order or the state."""

from dataclasses import fields
from enum import Enum

from fairseq.data import Dictionary
from fairseq.tasks.language_modeling import LanguageModelingConfig
from torch import Tensor

from highrank_plugins.common.names import flag
from highrank_plugins.common.user_error import UserError
from highrank_plugins.tasks.streams import SplitTokens

# options of language_modeling that are refused → the reason, or what to do instead
FOREIGN = {
    "sample_break_mode": "text is one stream across lines",
    "tokens_per_sample": "give --bptt; a --context-window is not needed, since state is carried",
    "output_dictionary_size": "binarise with a smaller dictionary (fairseq-preprocess --nwordstgt)",
    "self_target": "the next token is the target",
    "past_target": "the next token is the target",
    "add_bos_token": "a line begins after the end of the one before it",
    "max_target_positions": "streams have any length",
    "shorten_method": "it would drop tokens",
    "shorten_data_split_list": "it would drop tokens",
    "pad_to_fixed_length": "streams need no padding",
    "pad_to_fixed_bsz": "the batch size is fixed",
}


def check_task_options(args) -> None:
    """Refuse options of ``language_modeling`` that do not fit, and lengths out of range."""
    defaults = {f.name: f.default for f in fields(LanguageModelingConfig)}
    for name, reason in FOREIGN.items():
        value = getattr(args, name, defaults[name])
        value = value.value if isinstance(value, Enum) else value
        if value != defaults[name]:
            raise UserError(
                f"{flag(name)} {value} does not fit --task bptt_language_modeling: {reason}"
            )
    least = {"bptt": 1, "eval_streams": 1, "bptt_max_delta": 0}
    for name, bound in least.items():
        value = getattr(args, name)
        if value is not None and value < bound:
            raise UserError(f"{flag(name)} must be at least {bound}, got {value}")


def check_iterator_options(
    max_tokens: int | None,
    skip_remainder_batch: bool = False,
    grouped_shuffling: bool = False,
    **harmless: object,
) -> None:
    """Refuse options that would not make batches of streams.

    ``--required-batch-size-multiple`` and others have no effect: a batch has one row per stream.
    """
    if max_tokens is not None:
        raise UserError(
            "--max-tokens: give --batch-size (number of streams) and --bptt (length of a chunk) "
            "instead"
        )
    if skip_remainder_batch:
        raise UserError("--skip-remainder-batch would drop the end of every stream: leave it out")
    if grouped_shuffling:
        raise UserError("--grouped-shuffling: chunks of a stream come in order; leave it out")


def check_shares(streams: int, batch_size: int, processes: int) -> None:
    """Refuse --streams that leave a process without one, or of which --batch-size is no share."""
    share = -(-streams // processes)
    if streams < processes or batch_size != share:
        raise UserError(
            f"--streams {streams} of {processes} processes: give each one at least, and "
            f"--batch-size {share}, the largest share (it is {batch_size})"
        )


def check_tokens(tokens: Tensor, dictionary: Dictionary, path: str) -> None:
    """Refuse a split without tokens, or with ids that the dictionary lacks."""
    if len(tokens) == 0:
        raise UserError(f"{path}.bin is empty: its text has no tokens")
    if int(tokens.max()) >= len(dictionary):
        raise UserError(
            f"{path}.bin has word number {int(tokens.max())}, but dict.txt has {len(dictionary)} "
            "words: they belong to different corpora; run fairseq-preprocess again"
        )


def check_unknown(texts: dict[str, SplitTokens], train_subset: str, unk: int) -> None:
    """Refuse to evaluate on unknown words if the training text has none."""
    if train_subset not in texts or texts[train_subset].tokens.eq(unk).any():
        return
    for split, text in texts.items():
        unknown = int(text.tokens.eq(unk).sum())
        if unknown:
            raise UserError(
                f"{split}: {unknown} of {len(text)} tokens are not in dict.txt, and "
                f"{train_subset} has no <unk>, so their probability would be meaningless: "
                "replace rare words of the training text by <unk>, or binarise with a "
                "dictionary that has all words"
            )
