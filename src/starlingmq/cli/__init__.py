"""The command ``starlingmq``: main.py finds the command, one module for each holds it."""
