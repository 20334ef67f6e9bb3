"""Write the head card: one page with the results of all measures for a checkpoint."""
