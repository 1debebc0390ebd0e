"""Lesson 03."""
