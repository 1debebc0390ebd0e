"""Lesson 15."""
