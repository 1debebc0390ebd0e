"""The old name of :mod:`perfkit.show`, until everything says the new one."""
