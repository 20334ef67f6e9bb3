"""Provide small tools that every package may use: light to import, without fairseq."""
