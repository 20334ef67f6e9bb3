"""Define options, and check their numbers."""

import ast
import math
import sys
from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple

from highrank_plugins.common.names import NO_QUALITY, flag, reversed_flag
from highrank_plugins.common.user_error import UserError


def described(text: str, default: Any = None) -> Any:
    """Return a dataclass field with its default and, where fairseq reads it, its help."""
    return field(default=default, metadata={"help": text})


class Range(NamedTuple):
    """Bound a number; the bounds belong to the range unless they are said to be beyond it."""

    low: float
    high: float = math.inf
    above_low: bool = False
    below_high: bool = False

    def problem(self, value: float) -> str | None:
        """Return what is wrong with a value, or None."""
        above = value > self.low if self.above_low else value >= self.low
        if above and (value < self.high if self.below_high else value <= self.high):
            return None
        if math.isinf(self.high):
            bound = "greater than" if self.above_low else "at least"
            return f"must be {bound} {self.low:g}, got {value:.10g}"
        brackets = "([" [not self.above_low], ")]"[not self.below_high]  # fmt: skip
        interval = f"{brackets[0]}{self.low:g}, {self.high:.10g}{brackets[1]}"
        return f"must lie in {interval}, got {value:.10g}"


# −1 stands for "off" or "as another option says" where fairseq uses it so
_GROUPS: dict[Range, str] = {
    # with 1, nothing is left; beyond, torch refuses each batch or the loss changes its sign
    Range(0, 1, below_high=True): """
        dropout attention_dropout activation_dropout relu_dropout adaptive_softmax_dropout
        encoder_layerdrop decoder_layerdrop label_smoothing momentum adam_betas
        encoder_dropout_in encoder_dropout_out decoder_dropout_in decoder_dropout_out
        dropouti dropouth dropoute wdrop
        """,
    Range(0, 1): "ema_decay quant_noise_pq quant_noise_scalar teacher_weight",
    Range(-1, 1): "sampling_topp",
    Range(0, 1, above_low=True): "lr_shrink",
    # counts: a negative one ends a training run at once, or is taken for none
    Range(0): """
        max_update max_epoch warmup_updates clip_norm weight_decay stop_time_hours
        save_interval_updates validate_interval_updates validate_after_updates data_buffer_size
        ema_start_update encoder_layers decoder_layers min_len max_len_b no_repeat_ngram_size
        adam_eps adafactor_eps end_learning_rate curriculum head_monitor lr head_z_loss rel_pos_clip
        ar_alpha tar_beta bptt_max_delta nonmono asgd_at_epoch ignore_prefix_size
        """,
    Range(0, 2**32 - 1): "seed",
    # one process each, and one column each
    Range(0, 1024): "num_workers",
    Range(1, 2**16): "required_batch_size_multiple required_seq_len_multiple",
    Range(0, above_low=True): "temperature fp16_init_scale final_lr_scale teacher_temperature",
    Range(-1): """
        patience keep_last_epochs keep_best_checkpoints keep_interval_updates warmup_init_lr
        stop_min_lr
        """,
    # divisors and sizes
    Range(1): """
        t_mult batch_size batch_size_valid max_tokens max_tokens_valid update_freq tokens_per_sample
        save_interval validate_interval log_interval ema_update_freq max_valid_steps
        max_source_positions max_target_positions distributed_world_size num_shards beam nbest
        encoder_embed_dim decoder_embed_dim encoder_ffn_embed_dim decoder_ffn_embed_dim
        encoder_attention_heads decoder_attention_heads
        encoder_hidden_size decoder_hidden_size decoder_last_hidden_size decoder_out_embed_dim
        decoder_input_dim decoder_output_dim head_embed_dim head_loss_memory bptt eval_streams
        streams
        """,
}
# where infinity means that there is no limit
_MAY_BE_INFINITE = {"clip_norm", "stop_time_hours"}
RANGES = {name: bounds for bounds, names in _GROUPS.items() for name in names.split()}


class WrongNumbers(UserError):
    """Report options that contradict their range or each other: name → what is wrong."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems, names = problems, dict[str, list[str]]()
        for name, text in problems.items():  # fairseq copies some options into others
            names.setdefault(text, []).append(flag(name))
        super().__init__("; ".join(f"{' and '.join(of)} {text}" for text, of in names.items()))


def check_ranges(options: Mapping[str, Any]) -> None:
    """Check the numbers of parsed options."""
    problems: dict[str, str] = {}
    for name, value in options.items():
        for number in _numbers(name, value):
            if not abs(number) < 3.4e38 and (math.isnan(number) or name not in _MAY_BE_INFINITE):
                problems[name] = f"{number:g}: expected a finite number"
            elif isinstance(number, int) and 2**32 < abs(number) != sys.maxsize:  # no limit
                problems[name] = f"must be at most {2**32}, got {number}"
            elif name in RANGES and (problem := RANGES[name].problem(number)):
                problems[name] = problem
    # fairseq finds these two in the first and in the last update
    for name in ("adam_betas", "adafactor_eps"):
        is_pair = len(_numbers(name, value := options.get(name))) == 2
        if value is not None and not (is_pair or name in problems or "$" in str(value)):
            problems[name] = f"takes two numbers, such as '(0.9, 0.98)', got {value}"
    warmup = options.get("warmup_updates") if options.get("lr_period_updates") == -1 else None
    if options.get("lr_scheduler") == "cosine" and warmup and warmup == options.get("max_update"):
        problems["warmup_updates"] = f"must be less than --max-update, got {warmup}"
    beam, nbest = options.get("beam"), options.get("nbest")
    if not problems and isinstance(beam, int) and isinstance(nbest, int) and nbest > beam:
        # fairseq would print as many hypotheses as it has beams
        problems["nbest"] = f"must be at most --beam {beam}, got {nbest}"
    rank, processes = options.get("distributed_rank") or 0, options.get("distributed_world_size")
    if not problems and isinstance(processes, int) and not 0 <= rank < processes:
        problems["distributed_rank"] = f"must lie in [0, {processes}), got {rank}"
    if (size := options.get("output_dictionary_size", -1)) in range(4):
        problems["output_dictionary_size"] = f"must be at least 4, or -1 for all words, got {size}"
    if (metric := options.get("best_checkpoint_metric")) in NO_QUALITY:
        problems["best_checkpoint_metric"] = f"{metric}: says nothing of quality; take loss"
    if options.get("disable_validation") and options.get("patience", -1) > 0:
        problems["patience"] = "counts validations: remove --disable-validation"
    if options.get("lm_weight") and not options.get("lm_path"):
        problems["lm_weight"] = "has no effect without --lm-path"
    if found := reversed_flag(options):
        problems.setdefault(*found)
    if problems:
        raise WrongNumbers(problems)


def _numbers(name: str, value: Any) -> list[float]:
    """Return the numbers in the value of an option, alone or in a list."""
    if name in RANGES and isinstance(value, str):  # `--adam-betas '(0.9, 0.98)'`
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            # fairseq computes the value: `nan` and `inf` are names there; ${…} is another option's
            return [] if value.startswith("${") else [math.nan]
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
