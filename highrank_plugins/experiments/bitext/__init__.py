"""Parallel corpora as they are published: unpacked, cleaned and counted, split into pieces."""
