"""Define fairseq tasks. fairseq imports every file here."""
