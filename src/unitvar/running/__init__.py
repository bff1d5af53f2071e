"""Running a user's model and leaving it unchanged: examples, modes, lazy layers, random state, restoring.

Everything here lies below the rest of the library and imports none of it.
"""
