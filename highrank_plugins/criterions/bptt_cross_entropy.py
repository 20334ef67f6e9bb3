"""Train on streams by cross-entropy with activation regularisation: the loss of the AWD-LSTM."""

import math
from dataclasses import dataclass

from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from omegaconf import II
from torch import Tensor

from highrank_plugins.common.options import described
from highrank_plugins.common.user_error import UserError
from highrank_plugins.trunks import activation_penalty, temporal_penalty


@dataclass
class BPTTCrossEntropyConfig(FairseqDataclass):
    ar_alpha: float = described(
        "α: weight of the mean square of last-layer outputs (AWD-LSTM: 2)", 0.0
    )
    tar_beta: float = described(
        "β: weight of the mean square of their change in time (AWD-LSTM: 1)", 0.0
    )
    sentence_avg: bool = II("optimization.sentence_avg")


@register_criterion("bptt_cross_entropy", dataclass=BPTTCrossEntropyConfig)
class BPTTCrossEntropyCriterion(FairseqCriterion):
    """Add up nll per token + α mean(dropped²) + β mean((raw_{t+1} − raw_t)²), of the last LSTM.

    All three are means over the tokens of a batch, of all processes together. A learning rate of
    20 or 30 with ``--clip-norm 0.25`` thus acts as in the papers. The penalties are part of the
    training loss only. ``nll_loss`` (in bits) and ``ppl`` leave them out.

    The model returns loss, ``features`` (after dropout) and ``raw`` (before), [T, B, d], and
    ``state``, which the task hands to the next batch.
    """

    carries_state = True

    def __init__(self, task, ar_alpha: float, tar_beta: float, sentence_avg: bool = False):
        super().__init__(task)
        if sentence_avg:
            raise UserError(
                "--sentence-avg: streams have no sentences, and the loss is a mean over tokens; "
                "leave it out"
            )
        self.ar_alpha, self.tar_beta = ar_alpha, tar_beta

    def forward(self, model, sample):
        """Return loss, sample size and logging output of a chunk; its state enters the sample."""
        if "state" not in sample["net_input"]:
            raise UserError("--criterion bptt_cross_entropy needs --task bptt_language_modeling")
        out = model(
            **sample["net_input"],
            target=sample["target"],
            ignore_index=self.padding_idx,
            reduction="sum",
            kept_tokens=sample["ntokens"],
        )
        sample["next_state"] = out.state
        loss = out.loss
        if model.training:
            loss = loss + sample["tokens_per_process"] * self.penalty(out.features, out.raw)
        logging_output = {
            "loss": loss.data,
            "nll_loss": out.nll.data,
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample["ntokens"],
        }
        return loss, sample["ntokens"], logging_output

    def penalty(self, dropped: Tensor, raw: Tensor) -> Tensor:
        """Return α AR + β TAR of outputs [T, B, d]; a scalar."""
        total = raw.new_zeros(())
        if self.ar_alpha:
            total = total + self.ar_alpha * activation_penalty(dropped)
        if self.tar_beta:
            total = total + self.tar_beta * temporal_penalty(raw)
        return total

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        """Log means per token in bits, and the perplexity.

        They are rounded late: fairseq hands the rounded validation loss to the optimizer.
        """
        tokens = sum(log.get("ntokens", 0) for log in logging_outputs)
        for name in ("loss", "nll_loss"):
            nats = sum(log.get(name, 0) for log in logging_outputs)
            metrics.log_scalar(name, nats / tokens / math.log(2), tokens, round=6)
        metrics.log_derived(
            "ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg, round=4)
        )

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
