from tests.stream_corpus import stream_data  # noqa: F401  (a fixture)
