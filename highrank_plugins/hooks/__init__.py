"""Add features that fairseq lacks, by wrapping its functions."""
