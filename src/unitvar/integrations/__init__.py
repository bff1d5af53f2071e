"""Adapters to other frameworks. Each is imported only by those who use it."""
