"""The version, alone in a file that a build reads without importing anything else."""

__version__ = "0.1.0"
