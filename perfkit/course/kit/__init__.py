"""What every lesson uses."""
