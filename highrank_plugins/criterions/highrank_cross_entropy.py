"""Train by label-smoothed cross-entropy that the model computes in its forward pass.

With a teacher, training adds the divergence from its distribution in the same pass.
"""

import os
from dataclasses import dataclass
from typing import Optional

import torch
from fairseq import checkpoint_utils
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from highrank_plugins.common.options import described
from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.checkpoints import check_words
from highrank_plugins.losses import targets
from highrank_plugins.losses.nll import check_choice
from highrank_plugins.losses.weighted import DIVERGENCES

# tasks whose batches have at most `ntokens` targets that are no padding
COUNTING_TARGETS = (TranslationTask, LanguageModelingTask)


@dataclass
class HighrankCrossEntropyConfig(LabelSmoothedCrossEntropyCriterionConfig):
    teacher: Optional[str] = described(
        "also learn the distribution of this checkpoint, a model with a head and our dictionary; "
        "of several, PATH:PATH…, the divergence is the mean"
    )
    teacher_weight: float = described(
        "λ of the loss (1 − λ) cross-entropy + λ T² KL(teacher ‖ model)", 0.5
    )
    teacher_temperature: float = described("T, by which both log-probabilities are divided", 1.0)
    teacher_divergence: str = described(
        "forward: KL(teacher ‖ model); reverse: KL(model ‖ teacher); jensen_shannon", "forward"
    )


@register_criterion("highrank_cross_entropy", dataclass=HighrankCrossEntropyConfig)
class HighrankCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """Compute fairseq's ``label_smoothed_cross_entropy``, with the memory of one chunk.

    Label smoothing is 0 unless given. The head never holds all log-probabilities at once. A teacher
    is part of the training loss only; ``nll_loss``, and validation, leave it out.
    """

    def __init__(self, cfg, task):
        self.paths = [] if cfg.teacher is None else cfg.teacher.split(os.pathsep)
        for name in ("weight", "temperature", "divergence"):
            stock = getattr(HighrankCrossEntropyConfig, f"teacher_{name}")
            if not self.paths and getattr(cfg, f"teacher_{name}") != stock:
                raise UserError(f"--teacher-{name} changes nothing without --teacher; add it")
        check_choice("--teacher-divergence", cfg.teacher_divergence, tuple(DIVERGENCES))
        stocks = ("sentence_avg", "label_smoothing", "ignore_prefix_size", "report_accuracy")
        super().__init__(task, *(getattr(cfg, name) for name in stocks))
        self.cfg = cfg
        self.loaded = []  # the teachers; no modules of the criterion, which would be trained

    def check_before_training(self) -> None:
        """Refuse teachers that are no files; validation needs none."""
        for path in self.paths:
            if not os.path.isfile(path):
                raise UserError(f"--teacher: no such file: {path!r}")

    def forward(self, model, sample, reduce=True):
        if not getattr(model, "computes_loss", False):
            raise UserError(
                "--criterion highrank_cross_entropy needs a model with a head (--arch "
                "transformer_<head> and others); for other models use label_smoothed_cross_entropy"
            )
        target = self.scored_target(sample["target"])
        options = {"target": target, "label_smoothing": self.eps}
        if self.paths and model.training:
            options = {"target": self.with_teacher(model, target, sample["net_input"])}
        options |= {
            "ignore_index": self.padding_idx, "reduction": "sum" if reduce else "none",
            "accuracy": self.report_accuracy,
            # other tasks may count the source's tokens
            "kept_tokens": sample["ntokens"] if isinstance(self.task, COUNTING_TARGETS) else None,
        }  # fmt: skip
        inputs = {"net_input": sample["net_input"] | options, "target": target}
        return super().forward(model, sample | inputs, reduce)

    def compute_loss(self, model, net_output, sample, reduce=True):
        return net_output.loss, net_output.nll

    def compute_accuracy(self, model, net_output, sample):
        return net_output.correct.sum(), sample["target"].ne(self.padding_idx).sum()

    def scored_target(self, target: Tensor) -> Tensor:
        """Return targets with the first ``--ignore-prefix-size`` of each row ignored."""
        if self.ignore_prefix_size == 0:
            return target
        target = target.clone()
        target[:, : self.ignore_prefix_size] = self.padding_idx
        return target

    def with_teacher(self, model, target: Tensor, net_input: dict) -> targets.Target:
        """Return the labels and the teachers' distributions, weighted."""
        teachers, weight = self.teachers_like(next(model.parameters())), self.cfg.teacher_weight
        total = (1 - weight) * targets.labels(target, self.eps)
        for path, teacher in zip(self.paths, teachers, strict=True):
            check_lengths(path, teacher, net_input)
            with torch.no_grad():
                features, _ = teacher.features(**net_input)
            total += (weight / len(teachers)) * targets.from_teacher(
                teacher.head, features, divergence=self.cfg.teacher_divergence,
                temperature=self.cfg.teacher_temperature,
            )  # fmt: skip
        return total

    def teachers_like(self, parameter: Tensor) -> list:
        """Return the teachers, loaded once, with device and dtype of the student's parameter."""
        if not self.loaded:
            # the initial values of a model must not move the student's random numbers
            with torch.random.fork_rng(devices=[]):
                self.loaded = [self.load_teacher(path).eval().to(parameter) for path in self.paths]
        return self.loaded

    def load_teacher(self, path: str):
        """Return the model of a checkpoint; refuse another dictionary, and one without a head."""
        load = checkpoint_utils.load_model_ensemble_and_task
        try:
            state = checkpoint_utils.load_checkpoint_to_cpu(path)
            check_words(self.task, state.pop("task_state", {}))
            (teacher,), _, _ = load([path], task=self.task, state=state)
        except (OSError, UserError) as error:  # another process may have removed it
            raise UserError(f"--teacher {path}: {error}") from None
        if not getattr(teacher, "computes_loss", False):
            raise UserError(f"--teacher {path}: expected a model with a head of this package")
        if not all(p.isfinite().all() for p in teacher.parameters()):
            raise UserError(
                f"--teacher {path}: its training has diverged; take an earlier checkpoint"
            )
        return teacher


def check_lengths(path: str, teacher, net_input: dict) -> None:
    """Refuse a teacher that has no positions for the tokens of a batch."""
    most = teacher.max_positions()
    names = ("src_tokens", "prev_output_tokens")
    sizes = [net_input[name].size(1) for name in names if name in net_input]
    for size, limit in zip(sizes, most if isinstance(most, tuple) else (most,), strict=False):
        if size > limit:
            raise UserError(
                f"--teacher {path}: it takes at most {limit} tokens, a batch has {size}; shorten "
                "them (--tokens-per-sample; --max-source-positions, --max-target-positions)"
            )
