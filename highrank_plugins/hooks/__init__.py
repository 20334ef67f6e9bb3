"""Add features that fairseq lacks, where its functions call."""
