"""A checkpoint does not say which words its numbers stand for.

What breaks: with two words of a dictionary swapped after training, every command computes with the
wrong embeddings, silently. fairseq-eval-lm takes even a shuffled dictionary: perplexity 156, exit
code 0. `--lm-path` adds the scores of a language model, whatever its words. With one dictionary for
both languages, `-s de -t en` lets a model from English to German translate German.
Why: a checkpoint holds no words, and only the size of a dictionary is compared.
What we do: add a hash of the words in order, without their counts, to the task's state in each
checkpoint, for source and target apart. Compare it wherever a task loads that state (generation,
validation, evaluation, analysis) and before a run loads parameters. A file without a hash, such as
one of fairseq 0.10, is read with a warning, whatever reads it. The languages are stored, too; a
model is refused where they are exchanged, except to train another model from it. Tasks of many
dictionaries are left alone. The dictionary of `--lm-path` must equal that of the target.
Delete when: fairseq stores the dictionary, or a hash of it.
"""

from collections.abc import Mapping
from typing import Any

from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import FairseqTask

from highrank_plugins.common.checkpoint_file import warn_without_hash
from highrank_plugins.common.checksums import digest_of_words
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError


def check_dictionaries(task: FairseqTask, state: Mapping[str, Any]) -> None:
    """Compare the dictionaries of a task with the task state of a checkpoint."""
    saved = state.get("dictionaries", {})
    for side, digest in _hashes(task).items():
        if saved.get(side, digest) != digest:
            raise UserError(
                f"the {side} dictionary (dict.*txt) is not the dictionary that the checkpoint "
                "was trained with: its words or their order differ, though the sizes may "
                "fit. Give the directory of binarised data of that training run, or binarise "
                "with its dictionaries (--srcdict, --tgtdict)"
            )


@replaces(checkpoint_utils, "load_checkpoint_to_cpu")
def load_checkpoint_to_cpu(stock, path, *args, **kwargs) -> dict[str, Any]:
    """Load a checkpoint; warn of one that cannot show which words its numbers stand for."""
    state = stock(path, *args, **kwargs)
    warn_without_hash(str(path), state)
    return state


def _hashes(task: FairseqTask) -> dict[str, str]:
    if hasattr(task, "dicts"):  # a dictionary per language; options name source and target
        return {}
    found = {}
    for side in ("target", "source"):
        try:
            dictionary = getattr(task, f"{side}_dictionary", None)
        except NotImplementedError:  # the task has no words
            continue
        if isinstance(dictionary, Dictionary):
            found[side] = digest_of_words(dictionary[index] for index in range(len(dictionary)))
    return found


@replaces(FairseqTask, "state_dict")
def state_dict(stock, task) -> dict[str, Any]:
    """Return what a checkpoint holds of a task, with hashes of its dictionaries and languages."""
    return {**stock(task), "dictionaries": _hashes(task), "languages": _languages(task)}


@replaces(FairseqTask, "load_state_dict")
def load_state_dict(stock, task, state) -> None:
    """Load the state of a task."""
    check_dictionaries(task, state)
    saved, ours = state.get("languages"), _languages(task)
    if saved and saved != ours and saved == ours[::-1]:
        raise UserError(
            "-s {} -t {}: the model translates {} to {}; exchange the two".format(*ours, *saved)
        )
    stock(task, state)


def _languages(task: FairseqTask) -> list[str]:
    """Return source and target language, if the task has both."""
    cfg = getattr(task, "cfg", None)
    found = [getattr(cfg, f"{side}_lang", None) for side in ("source", "target")]
    return found if all(found) else []


@replaces(SequenceGenerator, "__init__")
def init(stock, generator, *args, **kwargs) -> None:
    """Construct a generator, and compare the dictionaries."""
    stock(generator, *args, **kwargs)
    if isinstance(generator.lm_model, FairseqEncoderDecoderModel):
        raise UserError("--lm-path: this checkpoint has an encoder, so it is not a language model")
    decoder = getattr(generator.lm_model, "decoder", None)
    words = getattr(decoder, "dictionary", None)
    if words is not None and words != generator.tgt_dict:
        raise UserError(
            "--lm-path: the dictionary of the language model is not the target dictionary of the "
            "translation model: train it on data binarised with --srcdict dict.TARGET.txt"
        )
