"""Train as fairseq does, but resume exactly, tell listeners, show signs of life, name failures.

`HighrankTrainer` takes the place of fairseq's `Trainer`; its methods show in which order they act.

Listeners. What breaks: nothing lets validations and checkpoints use averaged weights; a task adds
the state of one process alone. Why: `Trainer` calls task and optimizer in one process, or not at
all. What we do: notify each `TrainingListener` among optimizer (torch's), task and model in every
process, and the model's `monitor` in the first. Delete when: fairseq has such hooks.

Signs of life. What breaks: where one of several processes hangs, the others wait for minutes, and
no message names it. Why: fairseq shows nothing that could be watched. What we do: note what each
process does (`common/heartbeat.py`). Delete when: fairseq does so.

Resuming. What breaks: a resumed run has the learning rate from before the last epoch's loss, counts
patience and `wall` from 0, and sees other batches from epoch 2 on. With `--store-ema` it ends in an
error, or averages after other updates. Why: checkpoints are written before the scheduler gets the
loss, and lack these numbers; batches have the seed of the process's first epoch. What we do: tell
the scheduler first, store the numbers, build an epoch's batches with its own seed, and hand weights
over as averages. Delete when: fairseq does so.

Loading. What breaks: NaN in weights, moments or averages is loaded; a file that does not fit ends
with `Cannot load model parameters`; one of another model whose sizes fit is taken for ours. Why:
fairseq looks at sizes alone, and replaces the error. What we do: show the options to model and
task, compare dictionaries, options and data, check the numbers (0.1 s per gigabyte), and raise the
reason with the file's name. Delete when: fairseq does so.
"""

import time
from functools import cached_property
from typing import Any

import torch
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from fairseq_cli import train as training

from highrank_plugins.common.checkpoint_file import ReasonsOf, saved_options
from highrank_plugins.common.heartbeat import TrainingListener, beat, listening
from highrank_plugins.common.names import criterion, reversed_flag
from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks import checkpoints, optimizers
from highrank_plugins.hooks.changed_options import HASHES, check_options, hashes_of_data
from highrank_plugins.hooks.generation import named_in_memory_errors, training_remedy

_AVERAGES = "ema_update_freq_counter"


class HighrankTrainer(Trainer):
    """Train a model; see the module for what differs from fairseq, and why."""

    def __init__(self, cfg: Any, *parts: Any, **named_parts: Any) -> None:
        self.has_stepped = False  # the first update compiles kernels, and may take long
        self.stepped_after: int | None = None  # epoch whose loss the scheduler has
        self.saved_after: int | None = None  # update that the newest checkpoint holds
        self.running_batch: Any = None
        self.has_begun = False  # see training_loop.py
        self.resumes_own = False  # from a checkpoint in --save-dir
        super().__init__(cfg, *parts, **named_parts)
        if (check := getattr(self.get_criterion(), "check_before_training", None)) is not None:
            check()

    def listeners(self) -> list[TrainingListener]:
        """Return what listens: the torch optimizer, task, model, and the model's monitor."""
        told = listening(self.optimizer.optimizer, self.task, self.get_model())
        monitors = [listener.monitor for listener in told] if self.is_data_parallel_master else []
        return [*told, *listening(*monitors)]

    def _tell(self, event: str, *details: Any) -> None:
        for listener in self.listeners():
            getattr(listener, event)(*details)

    @cached_property
    def data_hashes(self) -> dict[str, list[str | None]]:
        return hashes_of_data(self.cfg)

    def _build_optimizer(self) -> None:
        super()._build_optimizer()
        optimizers.require_found(self)

    # -- checkpoints --

    def load_checkpoint(
        self, filename: str, reset_optimizer: bool = False, *more: Any, reset_meters: bool = False
    ) -> Any:
        with ReasonsOf(filename), checkpoints.shown_to(self._examine):
            resets = {"reset_meters": reset_meters}
            extra_state = super().load_checkpoint(filename, reset_optimizer, *more, **resets)
            if extra_state is not None:
                if self.cfg.ema.store_ema:
                    self.ema.update_freq_counter = extra_state.pop(_AVERAGES, 0)
                self._refuse_not_finite(filename)
                self.resumes_own = checkpoints.is_own(self.cfg.checkpoint, filename)
        optimizers.recall_stopping(None if reset_optimizer or reset_meters else extra_state)
        if reset_optimizer:
            self._previous_training_time = 0
        # several processes store the time as a tensor
        start = time.perf_counter() - float(self.cumulative_training_time())
        metrics.get_meter("default", "wall").start_time = start
        return extra_state

    def _examine(self, path: str, state: dict[str, Any]) -> None:
        """Refuse a checkpoint that was read but is not of this model; complete it."""
        options = checkpoints.plain_options(saved_options(state, "model"))
        try:
            for listener in listening(self.get_model(), self.task):
                listener.check_saved_options(options)
            checkpoints.check_words(self.task, state.get("task_state") or {})
            check_options(self, path, state)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from None
        saved = saved_options(state, "checkpoint")
        if criterion(saved) != criterion(self.cfg.checkpoint) or reversed_flag(saved):
            # scores of another metric, or of the worst checkpoints
            for name in (optimizers.STOPPING, "best"):
                state.get("extra_state", {}).pop(name, None)
        if self.cfg.ema.store_ema:
            state["extra_state"].setdefault("ema", state["model"])

    def _refuse_not_finite(self, filename: str) -> None:
        tensors = {f"weight {name}": p for name, p in self.get_model().named_parameters()}
        tensors |= {
            f"moment {key} of parameter {place}": value
            for place, state in enumerate(getattr(self.optimizer.optimizer, "state", {}).values())
            for key, value in state.items()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        }
        if self.cfg.ema.store_ema:
            averages = {**self.ema.get_model().state_dict(), **self.ema.fp32_params}
            tensors |= {f"average {name}": value for name, value in averages.items()}
        if bad := not_finite(tensors):
            raise UserError(
                f"{filename}: {len(bad)} of its weights, moments of the optimizer and averages are "
                f"NaN or infinite, first {bad[0]}, so its training run has diverged, or the file "
                "was changed. Name an earlier checkpoint with --restore-file or "
                "--finetune-from-model, or move this one away to resume from the newest other one "
                "in --save-dir, and lower --lr. For new moments alone, add --reset-optimizer"
            )

    def consolidate_optimizer(self) -> None:
        """Prepare a checkpoint; fairseq calls this in every process before it saves one."""
        beat("saving")  # others wait for the writer
        self._tell("before_save")
        self.saved_after = self.get_num_updates()
        super().consolidate_optimizer()

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        extra_state = state["extra_state"]
        if self.cfg.ema.store_ema:
            extra_state[_AVERAGES] = self.ema.update_freq_counter
        extra_state[HASHES] = self.data_hashes
        checkpoints.add_function_options(state, self.get_model())
        extra_state[optimizers.STOPPING] = optimizers.stopping_numbers()
        return state

    # -- training --

    def get_train_iterator(self, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of an epoch, never those of an earlier one."""
        if self.has_stepped:
            beat("preparing an epoch")
        return super().get_train_iterator(*args, **{**kwargs, "disable_iterator_cache": True})

    def begin_epoch(self, epoch: int) -> None:
        self._tell("before_epoch", epoch)
        super().begin_epoch(epoch)

    def train_step(self, samples: Any, raise_oom: bool = False) -> Any:
        if self.has_stepped:
            beat("training")
        place = f"in update {self.get_num_updates() + 1}"
        try:
            lower = training_remedy(self.cfg)
            with named_in_memory_errors(place, lambda: self.running_batch, lower):
                self._tell("before_update", self.get_num_updates())
                logged = super().train_step(samples, raise_oom=True)
                updates = self.get_num_updates()
                self._tell("after_update", updates, self.cfg.common.tensorboard_logdir)
                self.has_stepped = True
                beat("training", updates)
        finally:
            self.running_batch = None
        return logged

    def _prepare_sample(self, sample: Any, is_dummy: bool = False) -> Any:
        self.running_batch = sample
        if not is_dummy:  # dummy batches exist in some processes only
            beat()
        return super()._prepare_sample(sample, is_dummy)

    def _aggregate_logging_outputs(self, *args: Any, **kwargs: Any) -> Any:
        beat()  # a process that waits here is ahead of the others
        return super()._aggregate_logging_outputs(*args, **kwargs)

    # -- validation --

    def begin_valid_epoch(self, epoch: int) -> None:
        self._tell("before_validation")
        super().begin_valid_epoch(epoch)

    def valid_step(self, sample: Any, raise_oom: bool = False) -> Any:
        again = checkpoints.how_to_resume(self.cfg.checkpoint)
        lower = f"Lower --max-tokens-valid or --batch-size-valid. Then {again}"
        with named_in_memory_errors("in a validation", lambda: sample, lower):
            return super().valid_step(sample, raise_oom)

    def end_epoch(self, epoch: int, loss: float) -> None:
        _, sign = criterion(self.cfg.checkpoint)
        self._tell("after_epoch", -sign * loss)
        self.lr_step(epoch, loss)

    def lr_step(self, epoch: int, val_loss: float | None = None) -> Any:
        """Return the learning rate after an epoch, whose loss counts once."""
        if val_loss is not None:
            if self.stepped_after == epoch:
                return self.lr_step_update()
            self.stepped_after = epoch
        return super().lr_step(epoch, val_loss)

    @property
    def is_finished(self) -> bool:
        """Whether a listener wants the training run to end."""
        return any(listener.finished for listener in self.listeners())


@torch.no_grad()
def not_finite(tensors: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of the tensors that hold NaN or an infinity."""
    named = [(name, tensor) for name, tensor in tensors.items() if tensor.numel()]
    if not named:
        return []
    finite = torch.stack([torch.stack(t.aminmax()).isfinite().all() for _, t in named]).tolist()
    return [name for (name, _), is_finite in zip(named, finite, strict=True) if not is_finite]


training.Trainer = HighrankTrainer
