"""Scores of given targets, without the log-probabilities of all other classes."""

from torch import Tensor


class TargetScores:
    """Stands for a model with a head in fairseq's ``SequenceScorer``.

    The scorer asks for log-probabilities [B, T, V] and gathers those of ``target`` [B, T]. Here the
    head computes these alone, a chunk of tokens at a time; what the scorer gathers from is a view
    that repeats them V times and takes no memory.
    """

    def __init__(self, model, target: Tensor) -> None:
        self.model, self.target = model, target

    def eval(self) -> None:
        """As the model's."""
        self.model.eval()

    def __call__(self, carried=None, **net_input):
        """log P(target) [B, T, 1], and what the decoder returns besides features.

        Args:
            carried: where batches continue each other, ``states`` by model, read and renewed.
        """
        if carried is not None:
            net_input["state"] = carried.states.get(self.model)
        features, extra = self.model.features(**net_input)
        if carried is not None:
            carried.states[self.model] = extra["state"]
        nll = self.model.head_loss(features, self.target).nll
        return -nll.unsqueeze(-1), extra

    def get_normalized_probs(self, net_output, log_probs: bool, sample=None) -> Tensor:
        """The scores [..., 1], or their exponentials, as a view [..., V]."""
        scores = net_output[0] if log_probs else net_output[0].exp()
        return scores.expand(*scores.shape[:-1], self.model.head.num_classes)
