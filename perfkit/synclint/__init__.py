"""Which lines would make the host wait for a GPU, found without one."""
