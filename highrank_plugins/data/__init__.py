"""Turn published archives and raw text into pieces and binarised data."""
