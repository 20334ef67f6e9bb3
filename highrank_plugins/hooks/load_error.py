"""fairseq hides why a checkpoint fails to load; say it in one line that names the file.

What breaks: a checkpoint of another head, of other sizes or with another dictionary ends, whether
resumed or given by `--finetune-from-model`, with `Exception: Cannot load model parameters from
checkpoint …; please ensure that the architectures match.` The model's own error, with reason and
remedy, is lost. Generation and evaluation end with whatever error the configuration in the file
leads to, such as `AttributeError: 'NoneType' object has no attribute 'size'`, which names no file.
Why: `Trainer.load_checkpoint` replaces every error of loading the parameters by that sentence, and
`load_model_ensemble_and_task` builds what the file describes without a look at it.
What we do: raise the reason as a `UserError` with the name of the file. LOGLEVEL=DEBUG shows where
it came from. Lost connections and errors of the disk stay as they are.
Delete when: fairseq names file and reason in its own messages.
"""

from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

from highrank_plugins.common.checkpoint_file import ReasonsOf
from highrank_plugins.common.patching import replaces
from highrank_plugins.hooks.checkpoint_identity import shown_to


@replaces(Trainer, "load_checkpoint")
def load_checkpoint(stock, trainer, filename, *args, **kwargs):
    """Load as fairseq does."""
    with ReasonsOf(filename), shown_to(trainer, filename):
        return stock(trainer, filename, *args, **kwargs)


@replaces(checkpoint_utils, "load_model_ensemble_and_task")
def load_model_ensemble_and_task(stock, filenames, *args, **kwargs):
    """Build the models that checkpoints describe, and load their parameters."""
    with ReasonsOf(":".join(map(str, filenames))):
        return stock(filenames, *args, **kwargs)
