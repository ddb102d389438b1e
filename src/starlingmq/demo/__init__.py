"""``starlingmq demo``: a cluster on this machine with a fleet of devices, and a script that breaks it.

``show`` is the script; ``stage`` writes the files that all take part by, ``cast`` are the processes: nodes
(``starlingmq serve``), the ``fleet`` (of which ``device`` is one, and ``tally`` counts), ``workers``, pipelines.
"""
