"""Tasks, models and batches in this process, configured by command-line words."""

import copy
import functools
from argparse import Namespace

import torch

from tests.built import Built, parse
from tests.trainings import OUR_LOSS, task_and_shape


def configure(data, arch: str, *words: object):
    """Return the configuration of `fairseq-train data --arch arch …`."""
    criterion = [] if "--criterion" in words else OUR_LOSS
    line = [data, "--arch", arch, *task_and_shape(arch), *criterion, *words]
    return copy.deepcopy(_parsed(tuple(map(str, line))))


@functools.cache
def _parsed(line: tuple[str, ...]):
    """Parse once what several tests ask for: fairseq needs a second for a command line."""
    return parse(line)


def build(data, arch: str, *words: object) -> Built:
    """Build everything of `fairseq-train data --arch arch …` but the trainer, seeded."""
    return Built.of(configure(data, arch, *words))


def assert_scores_of_one_pass(built: Built, sample: dict) -> list:
    """Assert that a beam search has the scores of a forward pass; return what it found."""
    model = built.model.eval()
    search = Namespace(beam=4, max_len_a=0, max_len_b=12, min_len=5, lenpen=0)
    generator = built.task.build_generator([model], search)
    found = built.task.inference_step(generator, [model], sample)
    inputs = sample["net_input"]
    words = "prev_output_tokens" if "prev_output_tokens" in inputs else "src_tokens"
    for row, hypotheses in enumerate(found):
        own = {name: value[row : row + 1] for name, value in inputs.items()}
        if "src_lengths" in own:  # an encoder's LSTM takes no row of padding alone
            own["src_tokens"] = own["src_tokens"][:, -int(own["src_lengths"]) :]
        assert len(hypotheses) == 4
        for hypothesis in hypotheses:
            tokens = hypothesis["tokens"][None]
            log_probs, _ = model(**own | {words: tokens.roll(1, 1)})  # </s> comes first
            want = log_probs.gather(-1, tokens[..., None]).flatten()
            torch.testing.assert_close(hypothesis["positional_scores"], want, rtol=0, atol=1e-5)
    return found


def gradients(built: Built, batch: dict) -> dict:
    """Return the gradients of a batch by name, without dropout."""
    built.model.zero_grad()
    built.criterion(built.model.eval(), batch)[0].backward()
    return {name: p.grad for name, p in built.model.named_parameters()}
