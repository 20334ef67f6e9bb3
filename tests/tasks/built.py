"""Task, model, criterion and batches of streams in this process."""

from tests.built import Built, parse
from tests.stream_corpus import LOSS, SHAPE, STREAMS


class WithBatches(Built):
    """Add the batches of a split."""

    def batches(self, split: str = "train", epoch: int = 1, **options):
        """Return an epoch's batches as a trainer gets them, with --batch-size 4 unless given."""
        self.task.load_dataset(split)
        of_training = {"update_epoch_batch_itr": False} if split == "train" else {}
        options = {"max_sentences": 4} | of_training | options
        dataset = self.task.dataset(split)
        return list(self.task.get_batch_iterator(dataset, epoch=epoch, **options).next_epoch_itr())


def configure(data, *words: object, arch: str = "awd_lstm_lm_softmax"):
    """Return the configuration of `fairseq-train data …` on streams; later words win."""
    shape = SHAPE if arch.startswith("awd_lstm_lm") else []
    loss = [] if "--criterion" in words else LOSS
    line = [data, "--arch", arch, *shape, *loss, *STREAMS, *words]
    return parse(line)


def build(data, *words: object, arch: str = "awd_lstm_lm_softmax") -> WithBatches:
    """Build everything short of the trainer, seeded."""
    return WithBatches.of(configure(data, *words, arch=arch))
