"""Launch a training run on several processes: one machine, many (torchrun), or SLURM (srun)."""
