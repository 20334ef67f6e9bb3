"""Define an optimizer and a learning-rate schedule for fairseq."""
