"""Define fairseq models: a stock trunk whose output layer is a head. fairseq imports every file."""
