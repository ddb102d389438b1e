"""The version, alone in a file that a build reads without importing anything else."""

__version__ = "0.2.0.dev0"
