"""Train by label-smoothed cross-entropy that the model computes in its forward pass."""

from fairseq import utils
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from highrank_plugins.common.user_error import UserError

# tasks whose batches have at most `ntokens` targets that are no padding
COUNTING_TARGETS = (TranslationTask, LanguageModelingTask)


@register_criterion("highrank_cross_entropy", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class HighrankCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """Compute fairseq's ``label_smoothed_cross_entropy``, with the memory of one chunk.

    Label smoothing is 0 unless given. The head never holds all log-probabilities at once.
    """

    @classmethod
    def build_criterion(cls, cfg, task):
        """Build the criterion of a configuration."""
        if not 0 <= cfg.label_smoothing < 1:
            raise UserError(f"--label-smoothing must lie in [0, 1), got {cfg.label_smoothing}")
        return super().build_criterion(cfg, task)

    def forward(self, model, sample, reduce=True):
        """Return loss, sample size and logging output of one batch."""
        if not getattr(model, "computes_loss", False):
            raise UserError(
                "--criterion highrank_cross_entropy needs a model with a head (--arch "
                "transformer_<head> and others); for other models use label_smoothed_cross_entropy"
            )
        target = self.scored_target(sample["target"])
        out = model(
            **sample["net_input"],
            target=target,
            label_smoothing=self.eps,
            ignore_index=self.padding_idx,
            reduction="sum" if reduce else "none",
            accuracy=self.report_accuracy,
            # other tasks may count the source's tokens
            kept_tokens=sample["ntokens"] if isinstance(self.task, COUNTING_TARGETS) else None,
        )
        sample_size = target.size(0) if self.sentence_avg else sample["ntokens"]
        logging_output = {
            "loss": out.loss.data,
            "nll_loss": out.nll.data,
            "ntokens": sample["ntokens"],
            "nsentences": target.size(0),
            "sample_size": sample_size,
        }
        if self.report_accuracy:
            logging_output["n_correct"] = utils.item(out.correct.sum())
            logging_output["total"] = utils.item(target.ne(self.padding_idx).sum())
        return out.loss, sample_size, logging_output

    def scored_target(self, target: Tensor) -> Tensor:
        """Return targets with the first ``--ignore-prefix-size`` of each row ignored."""
        if self.ignore_prefix_size == 0:
            return target
        target = target.clone()
        target[:, : self.ignore_prefix_size] = self.padding_idx
        return target
