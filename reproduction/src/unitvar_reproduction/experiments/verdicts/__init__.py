"""Is measure's verdict right? Networks that train, and networks that do not."""
