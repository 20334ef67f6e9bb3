"""Tasks, models and criteria of streams in this process."""

from tests.built import Built, parse
from tests.stream_corpus import LOSS, SHAPE, STREAMS


def configure(data, *words: object, arch: str = "awd_lstm_lm_softmax"):
    """Return the configuration of `fairseq-train data …` on streams; later words win."""
    shape = SHAPE if arch.startswith("awd_lstm_lm") else []
    loss = [] if "--criterion" in words else LOSS
    line = [data, "--arch", arch, *shape, *loss, *STREAMS, *words]
    return parse(line)


def build(data, *words: object, arch: str = "awd_lstm_lm_softmax") -> Built:
    """Build everything short of the trainer, seeded."""
    return Built.of(configure(data, *words, arch=arch))
