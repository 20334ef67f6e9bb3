"""fairseq-eval-lm prints perplexities of part of the text, or of none of it.

What breaks: with `--tokens-per-sample` above the training run's value (the default, 1024,
often is), blocks are skipped: "Evaluated 0 tokens … Perplexity: 1.00", exit code 0. Tokens with
infinite score are left out, so a model that gives p = 0 to frequent words looks better than it is.
NaN gives "Perplexity: nan", exit code 0. A model that was trained on continuous streams is scored
as if each block were the start of the text, which is worse, unless the task is named. Scoring holds
the log-probabilities of all classes of a batch at once, to read one of them per token. The last
line has one form for means per word and per piece of words, `--post-process subword_nmt` changes
nothing, and other names end in a traceback. Other commands do not say what they count.
Why: `eval_lm_dataloader` ignores blocks that are too long; `eval_lm` filters infinite scores and
never counts, and takes the task from the command line. It joins words that end in the option's
value. `SequenceScorer` serves every kind of model.
What we do: raise in these cases. Take `subword_nmt` for `@@ `, and say how many words the mean is
over; say at the start of each command that a dictionary holds pieces. Scores are checked in
`SequenceScorer`, which also serves `--score-reference` and the hub interface; models with a head
give it the scores of the targets alone.
Delete when: fairseq raises.
"""

import logging

import numpy as np
import torch
from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq_cli import eval_lm

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.scored_text import is_piece
from highrank_plugins.common.user_error import UserError

logger = logging.getLogger(__name__)


@replaces(LanguageModelingTask, "eval_lm_dataloader")
def eval_lm_dataloader(stock, task, dataset, *args, **kwargs):
    """Return batches of all of `dataset`, or raise a ValueError that names the option to change."""
    max_positions = kwargs.get("max_positions")
    if len(dataset) == 0:
        raise UserError("nothing to evaluate: the split given by --gen-subset is empty")
    if task.state.state_dict.get("carries_state"):
        raise UserError(
            "the checkpoint was trained on continuous streams, and --task language_modeling (the "
            "default) would forget the recurrent state between blocks: add --task "
            "bptt_language_modeling"
        )
    too_long = 0 if max_positions is None else np.sum(np.asarray(dataset.sizes) > max_positions)
    if too_long:
        raise UserError(
            f"{too_long} of {len(dataset)} blocks are longer than the {max_positions} tokens that "
            "the model accepts, and fairseq would leave them out: set --tokens-per-sample (now "
            f"{task.args.tokens_per_sample}) to at most {max_positions}, and do not use "
            "--sample-break-mode eos for longer sentences"
        )
    return stock(task, dataset, *args, **kwargs)


@replaces(SequenceScorer, "generate")
def generate(stock, scorer, models, sample, **kwargs):
    """Score the targets; raise FloatingPointError, with a sentence, if a score is not finite."""
    lean = [
        model.target_scores(sample["target"]) if hasattr(model, "target_scores") else model
        for model in models
    ]
    hypotheses = stock(scorer, lean, sample, **kwargs)
    scores = torch.cat([best["positional_scores"].float() for best, *_ in hypotheses])
    if not scores.isfinite().all():
        wrong = int((~scores.isfinite()).sum())
        raise FloatingPointError(
            f"{wrong} of {scores.numel()} log-probabilities in the batch of sentences "
            f"{sample['id'].tolist()[:5]} are infinite or NaN, so no perplexity can be given: "
            "the model is broken, or --fp16 overflows (try without)"
        )
    return hypotheses


@replaces(tasks, "setup_task")
def setup_task(stock, cfg, **kwargs):
    """Make a task; say it if the words of its dictionary are pieces."""
    task = stock(cfg, **kwargs)
    words = getattr(task, "target_dictionary", None)
    symbols = words.symbols if isinstance(words, Dictionary) else []
    pieces = sum(map(is_piece, symbols))
    if 20 * pieces > len(symbols):
        logger.info(
            f"the dictionary holds pieces of words ({pieces:,} of {len(symbols):,} have a mark): "
            "loss, perplexity and BLEU that fairseq prints count pieces where it does not join them"
        )
    return task


@replaces(eval_lm, "eval_lm")
def score_text(stock, *args, post_process=None, **kwargs):
    """Return loss and perplexity, or raise a UserError if --post-process would join nothing."""
    if post_process is None:
        return stock(*args, **kwargs)
    words, samples, count = kwargs["source_dictionary"], kwargs.pop("batch_iterator"), 0
    parts = {number for number, word in enumerate(words.symbols) if word.endswith("@@")}
    if post_process not in ("@@ ", "subword_nmt") or not parts:
        raise UserError(
            f"--post-process {post_process} would join nothing here: fairseq-eval-lm joins words "
            f"that end in @@, of which the dictionary has {len(parts)}; leave the option out"
        )

    def counted():
        nonlocal count
        for sample in samples:
            for row in sample.get("target", ()):
                numbers = row[row != words.pad()].tolist()
                count += len(numbers) - sum(number in parts for number in numbers[:-1])
            yield sample

    found = stock(*args, post_process="@@ ", batch_iterator=counted(), **kwargs)
    logger.info(f"loss and perplexity are means over {count:,} words and ends of lines")
    return found
