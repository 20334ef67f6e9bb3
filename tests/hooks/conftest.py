"""The trainings of tests/compat, in whose process hooks are tried, too."""

from tests.compat.conftest import data, language_model, stock, translator

__all__ = ["data", "language_model", "stock", "translator"]
