"""Write the head card: one page with all that the measures tell about a checkpoint."""
