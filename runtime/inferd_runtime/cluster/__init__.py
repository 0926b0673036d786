"""Several runtimes that serve as one: where a run starts, and how a tenant's quotas are divided. No process and no socket yet."""
