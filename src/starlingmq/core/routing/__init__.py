"""From a topic to its receivers: filters, routes, delivery, retained messages, streams."""
