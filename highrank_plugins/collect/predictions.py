"""What a recurrent language model predicts along a text, in blocks that fit in memory."""

from collections.abc import Iterator

import torch
from torch import Tensor

from highrank_plugins.tasks.carried_state import map_tensors

from .streaming_model import Segments, StreamingModel


@torch.no_grad()
def log_prob_blocks(model: StreamingModel, segments: Segments) -> Iterator[Tensor]:
    """log P of every class at every position of one stream, [T, M] for each segment.

    At least float32, on the device of the model. Row i predicts token i of the text, from all
    tokens before it.
    """
    state = None
    for batch in segments.starting_at(0):
        words = batch["net_input"]["src_tokens"].to(model.device)
        features, _, _, state = model.model.bptt_features(words, state)
        state = map_tensors(Tensor.detach, state)
        yield model.model.head.log_probs(features[:, 0])
