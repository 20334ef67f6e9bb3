"""Tasks, models and batches in this process, configured by command-line words."""

import copy
import functools

from tests.built import Built, parse
from tests.trainings import OUR_LOSS, task_and_shape


class WithBatches(Built):
    """Add the batches of a split."""

    def batch(self, split: str = "valid", sentences: int = 6) -> dict:
        """Return the first sentences of a split."""
        self.task.load_dataset(split)
        data = self.task.dataset(split)
        return data.collater([data[i] for i in range(sentences)])


def configure(data, arch: str, *words: object):
    """Return the configuration of `fairseq-train data --arch arch …`."""
    criterion = [] if "--criterion" in words else OUR_LOSS
    line = [data, "--arch", arch, *task_and_shape(arch), *criterion, *words]
    return copy.deepcopy(_parsed(tuple(map(str, line))))


@functools.cache
def _parsed(line: tuple[str, ...]):
    """Parse once what several tests ask for: fairseq needs a second for a command line."""
    return parse(line)


def build(data, arch: str, *words: object) -> WithBatches:
    """Build everything of `fairseq-train data --arch arch …` but the trainer, seeded."""
    return WithBatches.of(configure(data, arch, *words))
