"""Clusters as schedulers describe them: Slurm, Kubernetes, TF_CONFIG."""
