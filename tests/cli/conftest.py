from tests.stream_corpus import stream_data  # noqa: F401  (a fixture)
from tests.tiny_corpus import lm_data, mt_data  # noqa: F401  (fixtures)
