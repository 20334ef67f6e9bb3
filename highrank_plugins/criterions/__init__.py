"""Define fairseq criterions that ask the model for its loss."""
