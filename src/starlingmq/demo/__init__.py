"""``starlingmq demo``: a cluster on this machine with a fleet of devices, and a script that injects failures.

``show`` is the script; ``stage`` writes the files of all processes, and ``cast`` runs the processes: nodes
(``starlingmq serve``), the ``fleet`` (of ``device`` objects, counted by ``tally``), ``nats_workers``, pipelines.
"""
