"""Settings and data of other brokers, read into one description (``described``) and written (``written_*``)."""
