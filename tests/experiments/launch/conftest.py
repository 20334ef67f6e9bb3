from tests.tiny_corpus import mt_data  # noqa: F401  (a fixture)
