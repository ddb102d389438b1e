"""From a topic to its receivers: routes, streams, summaries of filters."""
