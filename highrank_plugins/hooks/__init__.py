"""Features that fairseq lacks, added where its functions call."""
