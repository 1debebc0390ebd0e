"""What the course claims, and what records say of it."""
