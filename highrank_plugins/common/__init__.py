"""Small tools that every room may use: light to import, without fairseq."""
