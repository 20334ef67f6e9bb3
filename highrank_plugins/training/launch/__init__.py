"""Launch a training on several processes: one machine, many (torchrun), or SLURM (srun)."""
