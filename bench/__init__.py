"""Benchmarks of StarlingMQ beside other brokers: ``python -m bench`` (see ``bench/__main__.py``)."""
