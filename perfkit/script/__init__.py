"""A whole run of a program that knows nothing of perfkit: watched, recorded, explained."""
