"""One training on several processes: on one machine, on many by torchrun, under SLURM by srun."""
