"""From published archives and raw text to pieces and binarised data."""
