"""One folder a lesson, with what that lesson alone needs."""
