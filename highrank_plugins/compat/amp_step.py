"""Under --amp every gradient is divided by the loss scale twice.

What breaks: on a GPU, SGD and NT-ASGD learn at `--lr` over the loss scale (128 and more). Weight
decay is too strong by that factor, and Adam drifts towards its epsilon. The norm in the log looks
right.
Why: `AMPOptimizer.clip_grad_norm` unscales the gradients of torch's optimizer, but `step` hands
fairseq's wrapper to the scaler, which knows optimizers by their identity and unscales them again.
What we do: hand torch's optimizer to the scaler both times.
Delete when: `AMPOptimizer.step` does the same.
"""

from collections.abc import Callable

from fairseq.optim.amp_optimizer import AMPOptimizer

from highrank_plugins.common.patching import replaces


@replaces(AMPOptimizer, "step")
def step(_stock: Callable, optimizer: AMPOptimizer) -> None:
    """Update with gradients as `clip_grad_norm` left them; skip an update that is not finite."""
    optimizer.scaler.step(optimizer.optimizer)
    optimizer.scaler.update()
