"""The command ``starlingmq``: main.py runs it, and each subcommand is a module."""
