"""A cluster on Ray Serve: Ray places processes, looks whether they live, and starts others; no request passes through it.

The only importer of ``ray``, which is optional (``inferd[cluster]``).
"""
