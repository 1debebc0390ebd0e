"""Lesson 18."""
