"""The `rocksdb` engines: an ordered key-value store and a journal."""
