"""A whole runtime as one of a cluster's replicas: it serves the cluster's front, and nobody else."""
